"""Processes with ranks, without torch: all wait for a lock, the last one in its own way.

usage: waiting_ranks.py N [read|lock|sleep|compute|timed|held|event|queue|accept|child]; prints "ready PID…" when they do, and ends with its stdin, or after five minutes.

One that is started with NCCL_RAS_ADDR has a thread with the name of torch's NCCL watchdog.
"""

import ctypes
import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time


def name_thread(name):
    """Its name in the kernel (prctl(2), PR_SET_NAME)."""
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)


def watchdog():
    name_thread(b"pt_nccl_watchdg")
    time.sleep(300)


def ready():
    os.write(1, b"x")


def hold(lock):
    with lock:
        time.sleep(300)


def wait(how):
    if "NCCL_RAS_ADDR" in os.environ:
        threading.Thread(target=watchdog, daemon=True).start()
    lock = threading.Lock()
    lock.acquire()
    if how == "held":
        lock = threading.Lock()
        threading.Thread(target=hold, args=(lock,), daemon=True).start()
        while not lock.locked():
            time.sleep(0.001)
    if how == "event":
        threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
    elif how == "accept":
        server = socket.create_server(("127.0.0.1", 0))
    elif how == "child":
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ready()
    if how == "event":
        threading.Event().wait()
    elif how == "queue":
        queue.Queue().get(timeout=300)
    elif how == "accept":
        server.accept()
    elif how == "child":
        child.stdout.read()
    elif how == "read":
        os.read(0, 1)  # mark: read
    elif how == "sleep":
        time.sleep(300)
    elif how == "compute":
        sum(itertools.repeat(1))
    elif how == "timed":
        lock.acquire(timeout=300)
    else:
        with lock:  # mark: lock
            pass


def asleep(pid):
    """How often each thread of a process has gone to sleep; None where one does not sleep."""
    switches = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as status:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
        if not fields["State"].startswith("S"):
            return None
        switches[task] = fields.get("voluntary_ctxt_switches")
    return switches


def wait_asleep(children):
    """Waits until all threads sleep for good: whoever waits for the GIL wakes every 5 ms."""
    before = None
    while True:
        now = [asleep(child.pid) for child in children]
        if None not in now and now == before:
            return
        before = now
        time.sleep(0.03)


def main():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.alarm(300)
    if sys.argv[1] == "rank":
        is_last = int(os.environ["RANK"]) + 1 == int(os.environ["WORLD_SIZE"])
        wait(sys.argv[2] if is_last else "lock")
        return
    count = int(sys.argv[1])
    how = sys.argv[2] if len(sys.argv) > 2 else "read"
    inner, outer = os.pipe()
    children = []
    for rank in range(count):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)}
        command = [sys.executable, __file__, "rank", how]
        children.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=outer))
    for _ in range(count):
        os.read(inner, 1)
    # They say so before they wait.
    wait_asleep(children[:-1] if how == "compute" else children)
    print("ready", *(child.pid for child in children), flush=True)
    sys.stdin.buffer.read()
    for child in children:
        child.kill()


if __name__ == "__main__":
    main()
