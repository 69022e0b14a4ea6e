"""Has stacks that are known in advance: what a sampler shows is one of them, or was torn while it was read.

Prints "ready PID" and works until it is killed. `steady`: one stack that does not change. `calls`: path > a3 > b3 > c3
and its parts, with one number in all; each function lasts for less than a microsecond. `threads`: 60 threads, of which
six compute in turns and the others wake each millisecond, beside the first one, which computes.
"""

import os
import sys
import threading
import time

FAMILY = """
def c{0}(n):
    total = 0
    for k in range(n):
        total += k
    return total
def b{0}(n):
    return c{0}(n) + c{0}(n)
def a{0}(n):
    return b{0}(n) + b{0}(n)
"""
for number in range(8):
    exec(compile(FAMILY.format(number), __file__, "exec"))
FIRST = [globals()[f"a{number}"] for number in range(8)]


def steady():
    while True:
        sum(range(50_000_000))


def path():
    while True:
        for first in FIRST:
            first(3)


def some_compute(number):
    while True:
        if number % 10:
            time.sleep(0.001)
        else:
            sum(range(10_000))


def threads():
    for number in range(60):
        threading.Thread(target=some_compute, args=(number,), daemon=True).start()
    steady()


print("ready", os.getpid(), flush=True)
{"steady": steady, "calls": path, "threads": threads}[sys.argv[1]]()
