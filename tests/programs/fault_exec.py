"""Replaces itself with exec --times times, working --work seconds in each life, then prints "done LIVES".

--into PROGRAM makes the next life another program; --next-python runs the next lives by another interpreter;
--from thread calls exec in a thread that is not the first, which ends the first and takes over its tid.

Prints "ready PID LIFE" in each life. With --go it waits for a line on stdin in its first life.
--threads starts sleeping threads in each life, which the exec ends.
"""

import argparse
import os
import sys
import threading
import time


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--work", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--go", action="store_true")
    parser.add_argument("--from", dest="origin", choices=["main", "thread"], default="main")
    parser.add_argument("--into")
    parser.add_argument("--next-python", default=sys.executable)
    arguments = parser.parse_args()
    if arguments.origin == "thread":
        thread = threading.Thread(target=live, args=(arguments,))
        thread.start()
        thread.join()
    else:
        live(arguments)


def live(arguments):
    for _ in range(arguments.threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", os.getpid(), arguments.life, flush=True)
    if arguments.go and arguments.life == 0:
        # Unbuffered: what stdin holds beyond the line belongs to the next life.
        while os.read(0, 1) not in (b"\n", b""):
            pass
    # Each life's work has a name of its own, too.
    scope = {"work": work}
    exec(f"def work_{arguments.life}(seconds): work(seconds)\nwork_{arguments.life}({arguments.work})", scope)
    if arguments.life >= arguments.times:
        print("done", arguments.life + 1, flush=True)
        return
    if arguments.into:
        os.execv(arguments.into, [arguments.into])
    options = ["--times", arguments.times, "--work", arguments.work, "--threads", arguments.threads, "--life", arguments.life + 1]
    os.execv(arguments.next_python, [arguments.next_python, __file__, *map(str, options)])


if __name__ == "__main__":
    main()
