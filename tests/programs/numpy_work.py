"""Works in NumPy's C code and in Python for SECONDS, with a thread that sleeps: numpy_work.py SECONDS. Prints "ready PID"."""

import os
import sys
import threading
import time

import numpy as np


def multiply(matrix):
    return np.dot(matrix, matrix).sum()


def squares(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def step(matrix):
    ordered = np.sort(matrix, axis=None)
    return multiply(matrix) + ordered[0] + np.exp(matrix * 0.001)[0, 0] + squares(3000)


def main():
    matrix = np.random.rand(160, 160)
    threading.Thread(target=threading.Event().wait, daemon=True, name="sleeper").start()
    print("ready", os.getpid(), flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        step(matrix)


main()
