"""Replaces itself with exec --times times, working --work seconds in each life, then prints "done LIVES".

Prints "ready PID LIFE" in each life. With --go it waits for a line on stdin in its first life.
--threads starts sleeping threads in each life, which the exec ends.
"""

import argparse
import os
import sys
import threading
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--work", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--go", action="store_true")
    arguments = parser.parse_args()
    for _ in range(arguments.threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", os.getpid(), arguments.life, flush=True)
    if arguments.go and arguments.life == 0:
        # Unbuffered: what stdin holds beyond the line belongs to the next life.
        while os.read(0, 1) not in (b"\n", b""):
            pass
    end = time.monotonic() + arguments.work
    while time.monotonic() < end:
        sum(range(1000))
    if arguments.life >= arguments.times:
        print("done", arguments.life + 1, flush=True)
        return
    options = ["--times", arguments.times, "--work", arguments.work, "--threads", arguments.threads, "--life", arguments.life + 1]
    os.execv(sys.executable, [sys.executable, __file__, *map(str, options)])


if __name__ == "__main__":
    main()
