"""Works, then ends in a way that the caller chooses: what a profiler sees when its target goes away.

usage: fault_exit.py [--after SECONDS | --go] HOW, where HOW is: return, sys-exit-3, os-exit-4, sigkill, sigsegv, exception.
Prints "ready PID"; ends after SECONDS of work, in CPU time, so that a crowded machine makes it no shorter; or at a line on stdin.
"""

import argparse
import ctypes
import os
import signal
import sys
import threading
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", type=float, default=0.5)
    parser.add_argument("--go", action="store_true")
    parser.add_argument("how", choices=["return", "sys-exit-3", "os-exit-4", "sigkill", "sigsegv", "exception"])
    arguments = parser.parse_args()
    told = threading.Event()
    if arguments.go:
        threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    print("ready", os.getpid(), flush=True)
    end = time.process_time() + (600 if arguments.go else arguments.after)
    while time.process_time() < end and not told.is_set():
        sum(range(1000))
    if arguments.how == "sys-exit-3":
        sys.exit(3)
    elif arguments.how == "os-exit-4":
        os._exit(4)
    elif arguments.how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif arguments.how == "sigsegv":
        ctypes.string_at(0)
    elif arguments.how == "exception":
        raise RuntimeError("as asked")


if __name__ == "__main__":
    main()
