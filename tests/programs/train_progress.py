"""A training run that counts its own steps, epochs and their times.

usage: train_progress.py [--epochs N] [--batches N] [--size N] [--accumulate N] [--optimizer sgd|adamw|fused] [--workers N]
                         [--evaluate] [--infer] [--slow STEP] [--module-level] [--autocast] [--handshake]

Prints one line of JSON at its end: steps, epochs, batches, evaluation batches, and each step's length in milliseconds, from the end of
the step before (steps that begin an epoch left out). With --handshake it first prints "ready" and waits for a line.
"""

import argparse
import contextlib
import functools
import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batches", type=int, default=20)
parser.add_argument("--size", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--optimizer", default="sgd")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--pixels", type=int, default=48)
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--infer", action="store_true")
parser.add_argument("--slow", type=int, default=0)
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--handshake", action="store_true")


class Noise(Dataset):
    def __init__(self, count, pixels):
        self.count, self.pixels = count, pixels

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, self.pixels, self.pixels), float(index % 7)), index % 10


def net(channels=32):
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


def tempt(seconds):
    """Computes for a while, as a stray extra in one step does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def evaluate(model, loader):
    model.eval()
    batches = 0
    with torch.no_grad():
        for inputs, _ in loader:
            model(inputs)
            batches += 1
    model.train()
    return batches


def train(arguments, model, optimizer, loader, test):
    truth = {"steps": 0, "epochs": 0, "batches": 0, "evaluated": 0, "step_ms": []}
    criterion = nn.CrossEntropyLoss()
    precision = torch.autocast("cpu", torch.bfloat16) if arguments.autocast else contextlib.nullcontext()
    for _ in range(arguments.epochs):
        before = None
        for number, (inputs, target) in enumerate(loader, 1):
            truth["batches"] += 1
            with precision:
                loss = criterion(model(inputs), target)
            if truth["steps"] + 1 == arguments.slow:
                # On a loaded machine each step takes longer, and this one has to stand out all the same.
                tempt(max(0.4, 4 * max(truth["step_ms"][2:], default=0) / 1000))
            loss.backward()
            if number % arguments.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                truth["steps"] += 1
                now = time.monotonic()
                if before is not None:
                    truth["step_ms"].append((now - before) * 1000)
                before = now
        truth["epochs"] += 1
        if arguments.evaluate:
            truth["evaluated"] += evaluate(model, test)
    return truth


def main():
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = net()
    options = {"batch_size": arguments.size, "num_workers": arguments.workers}
    loader = DataLoader(Noise(arguments.batches * arguments.size, arguments.pixels), **options)
    test = DataLoader(Noise(arguments.batches // 2 * arguments.size, arguments.pixels), **options)
    if arguments.handshake:
        print("ready", flush=True)
        sys.stdin.readline()
    if arguments.infer:
        batches = evaluate(model, loader)
        truth = {"steps": 0, "epochs": 0, "batches": batches, "evaluated": batches, "step_ms": []}
    else:
        makes = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "fused": functools.partial(torch.optim.AdamW, fused=True)}
        optimizer = makes[arguments.optimizer](model.parameters(), lr=1e-3)
        truth = train(arguments, model, optimizer, loader, test)
    # A run keeps its model for a while after the last step, if only to save it.
    time.sleep(0.1)
    print(json.dumps(truth), flush=True)


if __name__ == "__main__":
    main()
