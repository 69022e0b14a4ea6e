"""A CNN's training on the CPU in which no operator is small: what `scripts/accuracy operators` measures.

It warms up, prints "ready PID", and waits for a line on its stdin. Then it trains for --steps steps with a fixed seed.
Plain, it prints {"steps", "seconds"} as JSON. With --profile it trains under torch.profiler, and adds "self_cpu_us" and
"cpu_us" (with children) by event, and "calls". Every step has the same batch: no input, no waiting. Both forms also say how many
"page_faults" there were.

The operator that first writes to memory that is new to the process pays for it with page faults, so two runs can be compared only
where neither has them.
- glibc keeps freed memory, or gives it back to the kernel, as the order of events will have it: freed memory is kept here.
- torch.profiler keeps its events until it ends. They come to lie between the tensors, which then find less and less old memory of
  their size: 600 to 3,600 page faults a step, and native_batch_norm_backward's share grows from 5.5 to 10 %. So the heap is large,
  and written to, from the start, and torch.profiler is ended after each PART steps.
"""

import argparse
import collections
import ctypes
import json
import os
import resource
import sys
import time

# Kineto's log on stderr says nothing of use here.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch  # noqa: E402
from torch import nn  # noqa: E402


# Steps under one torch.profiler.
PART = 25


class Block(nn.Module):
    """Convolution, normalisation, activation and pooling, each an operator with enough work to be seen."""

    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.pool = nn.MaxPool2d(2)

    def forward(self, images):
        return self.pool(torch.relu(self.norm(self.conv(images))))


class Network(nn.Module):
    """Two blocks and a head whose linear layer is wide enough to weigh."""

    def __init__(self, side):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 16), Block(16, 32))
        features = 32 * (side // 4) ** 2
        self.wide = nn.Linear(features, 256)
        self.act = nn.GELU()
        self.head = nn.Linear(256, 10)

    def forward(self, images):
        hidden = self.blocks(images).flatten(1)
        return self.head(self.act(self.wide(hidden)))


def keep_freed_memory():
    """malloc.h: M_MMAP_MAX -4, M_TRIM_THRESHOLD -1 (the unsigned form of -1 switches trimming off)."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(-4, 0) and libc.mallopt(-1, -1)):
        raise OSError("mallopt failed")


def enlarge_heap(size=2 << 30):
    """Memory that the process has touched and freed."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    at = libc.malloc(size)
    if not at:
        raise MemoryError(size)
    ctypes.memset(at, 1, size)
    libc.free(at)


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    outputs = model(images)
    loss = nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    optimizer.step()
    return loss


def train(steps, *parts):
    for _ in range(steps):
        train_step(*parts)


def profile(steps, *parts):
    """Trains under torch.profiler: seconds, and what each event took, by what it is."""
    seconds, sums = 0, {"self_cpu_us": collections.Counter(), "cpu_us": collections.Counter(), "calls": collections.Counter()}
    for begin in range(0, steps, PART):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            started = time.monotonic()
            train(min(PART, steps - begin), *parts)
            seconds += time.monotonic() - started
        for event in profiler.key_averages():
            sums["self_cpu_us"][event.key] += event.self_cpu_time_total
            sums["cpu_us"][event.key] += event.cpu_time_total
            sums["calls"][event.key] += event.count
    return {"seconds": seconds, **sums}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--optimizer", choices=["sgd", "adamw", "fused-adamw"], default="adamw")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of OpenMP")
    parser.add_argument("--profile", action="store_true", help="under torch.profiler")
    arguments = parser.parse_args()
    keep_freed_memory()
    enlarge_heap()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    model = Network(arguments.side)
    parameters = model.parameters()
    if arguments.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=arguments.optimizer == "fused-adamw" or None)
    images = torch.randn(arguments.batch, 3, arguments.side, arguments.side)
    labels = torch.randint(0, 10, (arguments.batch,))
    parts = (model, optimizer, images, labels)
    (profile if arguments.profile else train)(PART, *parts)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    result = {"steps": arguments.steps}
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if arguments.profile:
        result.update(profile(arguments.steps, *parts))
    else:
        begin = time.monotonic()
        train(arguments.steps, *parts)
        result["seconds"] = time.monotonic() - begin
    result["page_faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
