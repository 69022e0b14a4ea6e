"""Waits of every kind that a machine without a GPU can show, each at a marked line and timed by the program itself.

usage: waits.py [ROUNDS]; prints one line of JSON at the end: seconds by mark.
"""

import asyncio
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time

LENGTH = 0.4
TRUTH = {}


def timed(mark, begin):
    TRUTH[mark] = TRUTH.get(mark, 0.0) + time.perf_counter() - begin


def later(what):
    """Does `what` in another thread, after a while."""

    def run():
        time.sleep(LENGTH)
        what()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def sleep():
    begin = time.perf_counter()
    time.sleep(LENGTH)  # mark: sleep
    timed("sleep", begin)


def lock():
    held = threading.Lock()
    held.acquire()
    thread = later(held.release)
    begin = time.perf_counter()
    held.acquire()  # mark: lock
    timed("lock", begin)
    thread.join()


def wait_in_queue():
    items = queue.Queue()
    thread = later(lambda: items.put(1))
    begin = time.perf_counter()
    items.get()  # mark: queue
    timed("queue", begin)
    thread.join()


def spin(stop):
    number = 0
    while not stop:
        number += 1  # mark: spin
    return number


def gil():
    """Gives the lock up again and again, to a thread that keeps it for as long as it may."""
    stop = []
    sys.setswitchinterval(0.1)
    thread = threading.Thread(target=spin, args=(stop,))
    thread.start()
    begin = time.perf_counter()
    while time.perf_counter() - begin < LENGTH:
        time.sleep(0)  # mark: gil
    timed("gil", begin)
    stop.append(True)
    thread.join()
    sys.setswitchinterval(0.005)


def pipe():
    reading, writing = os.pipe()
    thread = later(lambda: os.write(writing, b"x"))
    begin = time.perf_counter()
    os.read(reading, 1)  # mark: pipe
    timed("pipe", begin)
    thread.join()
    os.close(reading)
    os.close(writing)


def receive():
    near, far = socket.socketpair()
    thread = later(lambda: far.send(b"x"))
    begin = time.perf_counter()
    near.recv(1)  # mark: socket
    timed("socket", begin)
    thread.join()
    near.close()
    far.close()


def child():
    begin = time.perf_counter()
    subprocess.run(["sleep", str(LENGTH)], check=True)  # mark: child
    timed("child", begin)


def loop():
    begin = time.perf_counter()
    asyncio.run(asyncio.sleep(LENGTH))  # mark: loop
    timed("loop", begin)


def disk(file):
    """Not timed to a length: how long it takes is the disk's affair."""
    begin = time.perf_counter()
    for _ in range(8):
        os.write(file, os.urandom(1 << 20))
        before = time.perf_counter()
        os.fsync(file)  # mark: disk
        timed("disk", before)
        if time.perf_counter() - begin > LENGTH:
            break


def main(rounds):
    with tempfile.TemporaryFile(dir=".") as file:
        for _ in range(rounds):
            for wait in (sleep, lock, wait_in_queue, gil, pipe, receive, child, loop):
                wait()
            disk(file.fileno())
    print(json.dumps(TRUTH), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
