"""Threads that nap again and again, in the same system call at the same depth, so that only Python's frames differ.

The long naps of a thread take three times as long as its short ones, and as many are made: 75 % of its time. Prints "ready".
"""

import threading
import time

SHORT_S = 0.015
LONG_S = 3 * SHORT_S


def at_one_line():
    while True:
        time.sleep(SHORT_S)


def at_two_lines():
    while True:
        time.sleep(LONG_S)  # long
        time.sleep(SHORT_S)  # short


def by_two_callers():
    while True:
        naps_long()
        naps_briefly()


def naps_long():
    nap(LONG_S)


def naps_briefly():
    nap(SHORT_S)


def nap(seconds):
    time.sleep(seconds)


def main():
    for function in (at_one_line, at_two_lines, by_two_callers):
        threading.Thread(target=function, daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


main()
