"""Dies for lack of memory when it is told to.

usage: memory_ends.py heap|shm [--fork]
Prints "ready PID", waits for a line, and then `heap` takes memory until the kernel kills it. `shm` first fills nearly all
of /dev/shm, and then writes more to it than there is. With --fork a child does that, which is the PID; its status is printed as "ended STATUS".
"""

import mmap
import os
import sys


def more_than_fits(folder):
    """A mapping of a file in a tmpfs that is longer than what is free, and what is free."""
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    with open(os.path.join(folder, "batch"), "w+b") as file:
        os.unlink(file.name)
        file.truncate(2 * free)
        return mmap.mmap(file.fileno(), 2 * free), free


def touch(memory, start, end):
    for at in range(start, end, mmap.PAGESIZE):
        memory[at] = 1


def die(kind):
    filled = 0
    if kind == "shm":
        memory, free = more_than_fits("/dev/shm")
        filled = free - free // 64
        touch(memory, 0, filled)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    if kind == "shm":
        touch(memory, filled, len(memory))
    kept = []
    while True:
        kept.append(bytearray(b"1") * (1 << 20))


def main():
    if "--fork" not in sys.argv:
        die(sys.argv[1])
    child = os.fork()
    if child == 0:
        die(sys.argv[1])
    _, status = os.waitpid(child, 0)
    print("ended", status, flush=True)


main()
