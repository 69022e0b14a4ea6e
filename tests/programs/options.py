"""Threads that differ in what an option of a profiler asks about: who holds the GIL, who sleeps, what they are called.

usage: options.py [--child]. Prints "ready PID", with --child also the pid of a child that computes; ends at a line on
stdin, or when that is closed. Threads (their names are the kernel's, too): "holder" computes with the GIL, "releaser"
hashes without it, "sleeper" waits. The first thread reads stdin.
"""

import ctypes
import hashlib
import multiprocessing
import os
import sys
import threading

PR_SET_NAME = 15
DATA = bytes(1 << 22)


def compute():
    while True:
        sum(range(1000))


def compute_in_child():
    # Ends with its parent, however that ends.
    ctypes.CDLL(None).prctl(1, 9)
    compute_far_away()


def compute_far_away():
    while True:
        sum(range(1000))


def hash_without_gil():
    while True:
        hashlib.sha256(DATA).digest()


def wait_for_good():
    threading.Event().wait()


def named(name, function, started):
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
    started.wait()
    function()


def main():
    child = None
    if "--child" in sys.argv:
        child = multiprocessing.get_context("fork").Process(target=compute_in_child, daemon=True)
        child.start()
    started = threading.Barrier(4)
    for name, function in [("holder", compute), ("releaser", hash_without_gil), ("sleeper", wait_for_good)]:
        threading.Thread(target=named, args=(name, function, started), daemon=True).start()
    started.wait()
    print("ready", os.getpid(), *([child.pid] if child else []), flush=True)
    sys.stdin.readline()
    if child:
        child.kill()
        child.join()
    print("done", flush=True)


if __name__ == "__main__":
    main()
