"""Threads (and with --processes, children) that are born and die faster than a tick.

Prints "ready PID", runs for --seconds, prints "born N".
"""

import argparse
import os
import threading
import time


def live(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--life-ms", type=float, default=2)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--processes", action="store_true", help="a fork storm instead of threads")
    arguments = parser.parse_args()
    born = 0
    print("ready", os.getpid(), flush=True)
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        if arguments.processes:
            children = []
            for _ in range(arguments.parallel):
                child = os.fork()
                if child == 0:
                    live(arguments.life_ms / 1e3)
                    os._exit(0)
                children.append(child)
            for child in children:
                os.waitpid(child, 0)
        else:
            threads = [threading.Thread(target=live, args=(arguments.life_ms / 1e3,)) for _ in range(arguments.parallel)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        born += arguments.parallel
    print("born", born, flush=True)


if __name__ == "__main__":
    main()
