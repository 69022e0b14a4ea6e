"""Turns that a GPU would see: busy, idle, busy, ... each written down when it begins, for the double of NVML to replay.

usage: gpu_phases.py LOG BUSY_MS IDLE_MS [LIBRARY]. LOG gets a line for each turn: CLOCK_MONOTONIC in ns, and 1 or 0.
LIBRARY is loaded, under the name that it has. Prints "ready PID"; ends at a line on stdin, or when that is closed.
"""

import ctypes
import os
import select
import sys
import time


def keep_busy(until):
    while time.monotonic_ns() < until:
        sum(range(1000))


def be_idle(until):
    while (left := until - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def main():
    log, busy_ms, idle_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if len(sys.argv) > 4:
        ctypes.CDLL(sys.argv[4])
    with open(log, "w", buffering=1) as out:
        print("ready", os.getpid(), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            now = time.monotonic_ns()
            out.write(f"{now} 1\n")
            keep_busy(now + busy_ms * 1_000_000)
            now = time.monotonic_ns()
            out.write(f"{now} 0\n")
            be_idle(now + idle_ms * 1_000_000)


main()
