"""Stops itself with SIGSTOP, and says so when it goes on.

Prints "ready PID" and stops; after SIGCONT prints "continued", works for --seconds, prints "done". Whoever waits for
"ready" still has to wait for state T in /proc/PID/stat.
"""

import argparse
import os
import signal
import threading
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1)
    arguments = parser.parse_args()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    print("continued", flush=True)
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        sum(range(1000))
    print("done", flush=True)


if __name__ == "__main__":
    main()
