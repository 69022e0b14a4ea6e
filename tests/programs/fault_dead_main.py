"""A process whose main thread is dead (state Z) while other Python threads go on.

A survivor prints "ready PID" once /proc shows the main thread as a zombie; survivors work for --seconds, then the
last prints "done" and ends the process. With --go the main thread prints "waiting" and lives until a line on stdin.
"""

import argparse
import os
import sys
import threading
import time

import compiled


def main_is_dead(pid):
    with open(f"/proc/{pid}/task/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "Z"


def survive(seconds, speaks):
    pid = os.getpid()
    while not main_is_dead(pid):
        time.sleep(0.001)
    if speaks:
        print("ready", pid, flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    if speaks:
        print("done", flush=True)
        os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--survivors", type=int, default=2)
    parser.add_argument("--go", action="store_true")
    arguments = parser.parse_args()
    native = compiled.load("fault_dead_main.c")
    for number in range(arguments.survivors):
        threading.Thread(target=survive, args=(arguments.seconds, number == 0), name=f"survivor-{number}").start()
    if arguments.go:
        print("waiting", flush=True)
        sys.stdin.readline()
    # With the GIL released: pthread_exit must not take it along.
    native.end_this_thread()


if __name__ == "__main__":
    main()
