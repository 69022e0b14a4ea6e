"""A training run with extra work planted into one module's forward: what `torchspy diff` has to find.

--extra N multiplies two small matrices N times in each forward of `layers.2`. It warms up, prints "ready PID", and waits for a line on
its stdin. Then it trains for --seconds, or for --steps, and prints, as JSON, "steps", "step_ms", "extra_ms" (the extra work of a step, as it measured
it itself) and "seconds". --calibrate SHARE prints how many multiplications would make a step longer by that share ("extra"),
and ends.
"""

import argparse
import json
import os
import sys
import time

import torch
from torch import nn
from train_ops import keep_freed_memory

SIDE = 96


class Extra:
    """Work that is in no operator of the model's own, and how long it took."""

    def __init__(self, count):
        self.count = count
        self.seconds = 0.0
        self.left = torch.ones(SIDE, SIDE) / SIDE
        self.out = torch.empty(SIDE, SIDE)

    def work(self):
        begin = time.perf_counter()
        with torch.no_grad():
            for _ in range(self.count):
                torch.mm(self.left, self.left, out=self.out)
        self.seconds += time.perf_counter() - begin


class Block(nn.Module):
    def __init__(self, channels, extra=None):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.extra = extra

    def forward(self, batch):
        if self.extra is not None:
            self.extra.work()
        return torch.relu(self.norm(self.conv(batch))) + batch


class Net(nn.Module):
    def __init__(self, extra, channels=32):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.Sequential(*(Block(channels, extra if index == 2 else None) for index in range(4)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, 10)

    def forward(self, batch):
        return self.head(self.pool(self.layers(self.stem(batch))).flatten(1))


def steps(loader):
    """Batches without an end, epoch after epoch."""
    while True:
        yield from loader


def train(model, loader, seconds, most=None):
    """Trains for that long, or for that many steps; returns the steps and the time that they took."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    count, begin = 0, time.perf_counter()
    for batch, target in steps(loader):
        optimizer.zero_grad()
        criterion(model(batch), target).backward()
        optimizer.step()
        count += 1
        if count == most or (most is None and time.perf_counter() - begin >= seconds):
            return count, time.perf_counter() - begin


def calibrate(model, loader, extra, share):
    """How many multiplications make a step longer by `share`."""
    extra.count = 0
    train(model, loader, 1.0)
    count, took = train(model, loader, 4.0)
    extra.count, extra.seconds = 2000, 0.0
    extra.work()
    extra.seconds = 0.0
    extra.work()
    print(json.dumps({"extra": max(1, round(share * took / count / (extra.seconds / extra.count))), "step_ms": 1000 * took / count}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, help="so many steps, however long they take")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before ready")
    parser.add_argument("--calibrate", type=float, metavar="SHARE")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    extra = Extra(arguments.extra)
    model = Net(extra)
    data = torch.utils.data.TensorDataset(torch.randn(512, 3, 48, 48), torch.randint(0, 10, (512,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    if arguments.calibrate is not None:
        calibrate(model, loader, extra, arguments.calibrate)
        return
    train(model, loader, arguments.warm_up)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    extra.seconds = 0.0
    count, took = train(model, loader, arguments.seconds, arguments.steps)
    result = {"steps": count, "step_ms": 1000 * took / count, "extra_ms": 1000 * extra.seconds / count, "seconds": took}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
