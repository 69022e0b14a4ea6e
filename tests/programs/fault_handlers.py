"""Python signal handlers under a profiler: a sender sends SIGUSR1 and waits until each was handled.

usage: fault_handlers.py COUNT. Prints "ready PID", then at a line on stdin "handled HANDLED of COUNT"; meanwhile the main
thread computes. SIGUSR1 does not queue: the next one is sent when the one before has been counted.
"""

import os
import signal
import sys
import threading

COUNT = int(sys.argv[1])
handled = 0
answered = threading.Event()
over = False


def handle(number, frame):
    global handled
    handled += 1
    answered.set()


def send():
    global over
    for _ in range(COUNT):
        answered.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        if not answered.wait(20):
            break
    over = True


def main():
    signal.signal(signal.SIGUSR1, handle)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    threading.Thread(target=send).start()
    while not over:
        sum(range(1000))
    print("handled", handled, "of", COUNT, flush=True)


if __name__ == "__main__":
    main()
