"""A greenlet of gevent's that computes at a depth of its own, above the hub that switched back to it, elsewhere than at its start.

Prints "ready" from there.
"""

import sys
import threading

import gevent


def compute():
    gevent.sleep(0.01)
    print("ready", flush=True)
    # No function of Python's is called: it would be a frame, too.
    while not over:
        sum(range(1000))


def descend(depth):
    if depth:
        descend(depth - 1)
    else:
        compute()


over = []
threading.Thread(target=lambda: (sys.stdin.read(), over.append(True)), daemon=True).start()
gevent.spawn(descend, 3).join()
