"""A small trainer whose memory grows, or does not: what torchspy says of it is compared with what is planted.

usage: leaks.py none|list|closure|graphs|arrays|fragments|copies [--seconds 40]
`list` keeps a tensor of each step, `closure` keeps each batch in a function, `graphs` a loss with the graph of its forward pass, and
`arrays` NumPy arrays in a deque. `fragments` keeps little, but between large buffers, so
that their places are not used again. With `copies` the DataLoader's worker reads Python objects that it shares with its trainer.
`none` keeps nothing.
Prints "ready PID" after the first step, and a line of JSON at the end: steps, and the bytes that were planted in the trainer.
"""

import argparse
import collections
import json
import math
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 1 << 24

    def __getitem__(self, index):
        return torch.full((256,), float(index % 7)), index % 10


class Shared(Dataset):
    """Python objects: each has a reference count, which a read of it writes."""

    def __init__(self):
        self.rows = [[float(number + column) for column in range(8)] for number in range(400_000)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return torch.tensor(row).repeat(32), index % 10


def pack(numbers, step, kept):
    """Texts of ever more numbers: one in two is kept, and none fits where one was freed."""
    text = json.dumps(numbers[: 3500 + step])
    kept.append(json.dumps(numbers[: 3501 + step]))
    return len(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("leak", choices=["none", "list", "closure", "graphs", "arrays", "fragments", "copies"])
    parser.add_argument("--seconds", type=float, default=40)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    copies = arguments.leak == "copies"
    rows = Shared() if copies else Rows()
    loader = DataLoader(rows, batch_size=8, num_workers=1, multiprocessing_context="fork", shuffle=copies)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    kept, callbacks, recent, planted = [], [], collections.deque(), 0
    numbers = [math.sqrt(number) for number in range(50_000)]
    begin = time.monotonic()
    for steps, (inputs, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if arguments.leak == "list":
            kept.append(torch.zeros(8192) + loss.detach())
            planted += 8192 * 4
        if arguments.leak == "closure":
            batch = inputs.repeat(4, 1)
            callbacks.append(lambda batch=batch: batch.sum())
            planted += batch.numel() * 4
        if arguments.leak == "graphs":
            kept.append(model(inputs).square().mean())
        if arguments.leak == "arrays":
            recent.append(inputs.repeat(4, 1).numpy()[::2])
            planted += inputs.numel() * 4 * 4
        if arguments.leak == "fragments":
            pack(numbers, 2 * steps, kept)
        if steps == 1:
            print("ready", os.getpid(), flush=True)
        # Steps of a length that does not depend on the machine's speed.
        time.sleep(0.02)
        if time.monotonic() - begin > arguments.seconds:
            break
    print(json.dumps({"steps": steps, "planted": planted}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
