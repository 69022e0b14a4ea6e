"""Turns that a GPU would see: busy, idle, busy, ... each written down when it begins, for the double of NVML to replay.

usage: gpu_phases.py [--lag-ms MS] LOG BUSY_MS IDLE_MS [LIBRARY]. LOG gets a line for each turn of the device: CLOCK_MONOTONIC in
ns, and 1 or 0. The device is --lag-ms behind the program, as one whose kernels are queued. LIBRARY is loaded, under the name that
it has. Prints "ready PID"; ends at a line on stdin, or when that is closed.
"""

import argparse
import ctypes
import os
import select
import sys
import time


def keep_busy(until):
    # Long enough for all of the time, nearly, to be that of one line.
    while time.monotonic_ns() < until:
        sum(range(50_000))


def be_idle(until):
    while (left := until - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lag-ms", type=float, default=0)
    parser.add_argument("log")
    parser.add_argument("busy_ms", type=int)
    parser.add_argument("idle_ms", type=int)
    parser.add_argument("library", nargs="?")
    arguments = parser.parse_args()
    lag_ns = int(arguments.lag_ms * 1e6)
    if arguments.library:
        ctypes.CDLL(arguments.library)
    with open(arguments.log, "w", buffering=1) as out:
        print("ready", os.getpid(), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            now = time.monotonic_ns()
            out.write(f"{now + lag_ns} 1\n")
            keep_busy(now + arguments.busy_ms * 1_000_000)
            now = time.monotonic_ns()
            out.write(f"{now + lag_ns} 0\n")
            be_idle(now + arguments.idle_ms * 1_000_000)


main()
