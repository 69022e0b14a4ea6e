"""Threads at known places, for Pythons from 2.7 on: one sleeps, one computes, the main thread waits for a line and ends.

Prints "ready" when all have got there. No f-strings, no annotations: Python 2.7 runs this.
"""
from __future__ import print_function

import sys
import threading
import time

arrived = threading.Semaphore(0)


def sleep_long():
    arrived.release()
    time.sleep(3600)  # line: asleep


def outer_sleep():
    sleep_long()  # line: outer asleep


def compute():
    arrived.release()
    total = 0
    while True:  # line: busy
        total += 1  # line: busy


def wait_for_line():
    sys.stdin.readline()  # line: main


def main():
    for work in (outer_sleep, compute):
        thread = threading.Thread(target=work)
        thread.daemon = True
        thread.start()
        arrived.acquire()
    print("ready")
    sys.stdout.flush()
    wait_for_line()


if __name__ == "__main__":
    main()
