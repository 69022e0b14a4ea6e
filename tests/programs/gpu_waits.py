"""Waits for a device, each at a line of its own.

usage: gpu_waits.py ROUNDS

Prints one line of JSON at the end: for each mark, the moments of CLOCK_MONOTONIC in ns between
which its line ran, round by round. What the thread really waited for in them is in the node's truth log.
"""

import json
import sys
import time

import torch

DEVICE = torch.device("cuda")


class Work:
    """Kernels that keep the device busy for a while: each call of `queue` adds some 20 ms, on the node of the test and on a GPU."""

    LEAST_MS = 0.4

    def __init__(self):
        self.big = torch.zeros(1 << 20, device=DEVICE)
        while self.kernel_ms() < self.LEAST_MS and self.big.nbytes < torch.cuda.mem_get_info()[1] // 32:
            self.big = torch.zeros(2 * self.big.numel(), device=DEVICE)
        self.small = torch.zeros(64, device=DEVICE)
        self.flags = torch.zeros(64, dtype=torch.bool, device=DEVICE)
        self.pinned = torch.zeros(1 << 18).pin_memory()
        self.pageable = torch.zeros(1 << 18)
        self.event = torch.cuda.Event()
        self.stream = torch.cuda.Stream()
        # Of the memory that is free: two such blocks do not fit.
        self.half = int(torch.cuda.mem_get_info()[0] * 0.52)

    def kernel_ms(self, kernels=10):
        """What a kernel takes: the second time, since the first one is loaded."""
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.monotonic()
            self.queue(kernels)
            torch.cuda.synchronize()
        return (time.monotonic() - begin) * 1e3 / kernels

    def queue(self, kernels=40):
        for _ in range(kernels):
            self.big.mul_(1.0)


def item(work):
    work.small[0].item()  # mark: item


def cpu(work):
    work.small.cpu()  # mark: cpu


def to_device(work):
    work.pageable.to(DEVICE)  # mark: to_device


def to_device_pinned(work):
    work.pinned.to(DEVICE)  # mark: to_device_pinned


def to_host(work):
    work.small.to("cpu")  # mark: to_host


def copy_pinned(work):
    work.pinned.copy_(work.big[: 1 << 18])  # mark: copy_pinned


def tolist(work):
    work.small.tolist()  # mark: tolist


def numpy(work):
    work.small.cpu().numpy()  # mark: numpy


def shown(work):
    repr(work.small)  # mark: shown


def condition(work):
    if work.small[0] > 0:  # mark: condition
        raise AssertionError


def nonzero(work):
    work.small.nonzero()  # mark: nonzero


def indexed(work):
    work.small[work.flags]  # mark: indexed


def synchronize(work):
    torch.cuda.synchronize()  # mark: synchronize


def stream_synchronize(work):
    torch.cuda.current_stream().synchronize()  # mark: stream_synchronize


def event_synchronize(work):
    work.event.record()
    work.event.synchronize()  # mark: event_synchronize


def full_queue(work):
    work.queue(1200)  # mark: full_queue


def empty_cache(work):
    torch.zeros(1 << 22, device=DEVICE)
    work.queue(20)
    torch.cuda.empty_cache()  # mark: empty_cache


def pressure(work):
    # What is cached does not serve: the allocator gives it back, which waits for the device.
    half, more = work.half, work.half // 3 * 4
    held = torch.empty(half, dtype=torch.uint8, device=DEVICE)
    del held
    work.queue(20)
    torch.empty(more, dtype=torch.uint8, device=DEVICE)  # mark: pressure


KINDS = [
    item,
    cpu,
    to_device,
    to_device_pinned,
    to_host,
    copy_pinned,
    tolist,
    numpy,
    shown,
    condition,
    nonzero,
    indexed,
    synchronize,
    stream_synchronize,
    event_synchronize,
    full_queue,
    empty_cache,
    pressure,
]


def main():
    rounds = int(sys.argv[1])
    work = Work()
    spans = {kind.__name__: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            work.queue()
            start = time.monotonic_ns()
            kind(work)
            spans[kind.__name__].append([start, time.monotonic_ns()])
            torch.cuda.synchronize()  # mark: between
    print(json.dumps(spans), flush=True)


if __name__ == "__main__":
    main()
