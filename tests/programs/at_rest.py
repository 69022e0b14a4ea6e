"""Threads that sleep in known functions for as long as it lives, with variables of many kinds: what py-spy prints of them is the same each time.
It prints `ready` once all are started, and ends with its input. With --spin its only thread calls functions whose arguments are one number.
"""

import sys
import threading
import time


class Thing:
    def method(self, text="héllo"):
        time.sleep(1e6)  # at rest


def nap(seconds, numbers=(1, 2.5, True, None), big=2**70):
    table = {"a": 1, "b": [1, 2]}
    raw, small, long, thing = b"abc", -3, "q" * 300, Thing()
    time.sleep(seconds)  # at rest


def outer(seconds):
    nap(seconds)


def locked():
    with lock:  # at rest
        pass


def spin(first, second, third, fourth):
    return first


if sys.argv[1:] == ["--spin"]:
    print("ready", flush=True)
    number = 1000
    while True:
        number += 1
        spin(number, number, number, number)

lock = threading.Lock()
lock.acquire()
for name, function, arguments in [
    ("worker-1", outer, (1e6,)),
    ("loader; \"2\"", lambda: nap(1e6), ()),
    ("method", Thing().method, ()),
    ("locked", locked, ()),
]:
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()  # at rest
