"""A CNN's training on the CPU in which no operator is small: what `scripts/accuracy operators` measures.

It warms up, prints "ready PID", and waits for a line on its stdin. Then it trains for --steps steps with a fixed seed.
Plain, it prints {"steps", "seconds"} as JSON. With --profile it trains under torch.profiler, and adds "self_cpu_us" and
"cpu_us" (with children) by event, and "calls". Every step has the same batch: no input, no waiting. Both forms also say how many
"page_faults" there were.

glibc keeps freed memory, or gives it back to the kernel, as the order of events will have it, and the operator that next
writes to it pays for that: 1,600 page faults a step in one run and 11,000 in the next, with the time of fill_ doubled. Two runs
can be compared only where that is held, so freed memory is kept here.
"""

import argparse
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=5, help="steps before ready")
    parser.add_argument("--optimizer", choices=["sgd", "adamw", "fused-adamw"], default="adamw")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of OpenMP")
    parser.add_argument("--profile", action="store_true", help="under torch.profiler")
    arguments = parser.parse_args()
    keep_freed_memory()
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
    train(arguments.warm_up, *parts)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    result = {"steps": arguments.steps}
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if arguments.profile:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            begin = time.monotonic()
            train(arguments.steps, *parts)
            result["seconds"] = time.monotonic() - begin
        events = profiler.key_averages()
        result["self_cpu_us"] = {event.key: event.self_cpu_time_total for event in events}
        result["cpu_us"] = {event.key: event.cpu_time_total for event in events}
        result["calls"] = {event.key: event.count for event in events}
    else:
        begin = time.monotonic()
        train(arguments.steps, *parts)
        result["seconds"] = time.monotonic() - begin
    result["page_faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
