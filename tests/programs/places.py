"""Stands at a known place, for comparison with gdb's native stack and pystack's or py-spy's Python stack.

usage: places.py PLACE, where PLACE is one of
  sleep      time.sleep under three Python frames          (any Python)
  lock       a main thread in Lock.acquire, one in Queue.get, one in Thread.join    (any Python)
  generator  asleep inside a generator that a comprehension and a method drive      (any Python)
  coroutine  asleep inside awaited coroutines under asyncio.run                      (any Python)
  deep       asleep under 200 recursive frames             (any Python)
  callback   asleep in a key function that sorted() calls from C, under ctypes' qsort  (any Python)
  threads    all of the above at once, each in a thread of its own (any Python)
  spin       a Python loop that never ends                 (any Python)
  aten       one long ATen sort                            (torch)
  conv       oneDNN convolutions, one thread                (torch)
  backward   a custom autograd Function asleep in backward (torch)
  loader     waiting in a DataLoader whose worker sleeps   (torch)
  numpy      one long numpy sort                           (numpy)
  torch      aten, conv, backward and numpy at once, each in a thread of its own, and loader in the main thread
Prints "ready PID PLACE" right before it enters the place (for aten, conv and numpy: right before the long call), and
stays there until it is killed.
"""

import os
import sys
import time

ENTERED = []
PLACES = 1


def ready():
    ENTERED.append(None)
    if len(ENTERED) == PLACES:
        print("ready", os.getpid(), sys.argv[1], flush=True)


def start(names):
    import threading

    for name in names:
        threading.Thread(target=globals()["place_" + name], name=name, daemon=True).start()


def forever():
    ready()
    while True:
        time.sleep(1000)


def outer(function):
    return middle(function)


def middle(function):
    return inner(function)


def inner(function):
    return function()


def place_sleep():
    outer(forever)


def place_lock():
    import queue
    import threading

    held = threading.Lock()
    held.acquire()
    getter = threading.Thread(target=lambda: queue.Queue().get(), name="getter")
    getter.start()
    threading.Thread(target=getter.join, name="joiner").start()
    ready()
    held.acquire()


class Numbers:
    def __iter__(self):
        yield 1
        forever()
        yield 2

    def total(self):
        return sum([2 * number for number in self])


def place_generator():
    outer(Numbers().total)


def place_coroutine():
    import asyncio

    async def leaf():
        forever()

    async def root():
        await asyncio.gather(leaf())

    asyncio.run(root())


def place_deep(depth=200):
    if depth:
        place_deep(depth - 1)
    else:
        forever()


def place_callback():
    import ctypes

    def compare(left, right):
        outer(forever)
        return 0

    libc = ctypes.CDLL(None)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    numbers = (ctypes.c_int * 4)(4, 3, 2, 1)
    sorted([1], key=lambda _: libc.qsort(numbers, 4, ctypes.sizeof(ctypes.c_int), kind(compare)))


def place_threads():
    global PLACES
    names = ["sleep", "lock", "generator", "coroutine", "deep", "callback"]
    PLACES = len(names) + 1
    start(names)
    forever()


def place_spin():
    ready()
    while True:
        pass


def place_aten():
    import torch

    torch.set_num_threads(1)
    numbers = torch.randn(20_000_000)
    ready()
    while True:
        torch.sort(numbers)


def place_conv():
    import torch

    torch.set_num_threads(1)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1)
    images = torch.randn(64, 64, 56, 56)
    with torch.no_grad():
        layer(images)
        ready()
        while True:
            layer(images)


def place_backward():
    import torch

    class Sleepy(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            return inputs * 2

        @staticmethod
        def backward(context, gradient):
            forever()

    weights = torch.ones(3, requires_grad=True)
    Sleepy.apply(weights).sum().backward()


class SleepyData:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000)


def die_with_parent(_):
    """For a worker that never looks whether its parent lives: PR_SET_PDEATHSIG, SIGKILL."""
    import ctypes

    ctypes.CDLL(None).prctl(1, 9)


def sleepy_loader():
    from torch.utils.data import DataLoader

    return DataLoader(
        SleepyData(), batch_size=2, num_workers=1, multiprocessing_context="fork", worker_init_fn=die_with_parent
    )


def place_loader():
    batches = iter(sleepy_loader())
    ready()
    next(batches)


def place_numpy():
    import numpy

    numbers = numpy.random.default_rng(0).random(20_000_000)
    ready()
    while True:
        numpy.sort(numbers)


def place_torch():
    global PLACES
    batches = iter(sleepy_loader())
    names = ["aten", "conv", "backward", "numpy"]
    PLACES = len(names) + 1
    start(names)
    ready()
    next(batches)


if __name__ == "__main__":
    place = globals().get("place_" + sys.argv[1]) if len(sys.argv) == 2 else None
    if place is None:
        sys.exit(__doc__)
    place()
