"""A training loop that starves: what its DataLoader makes takes far longer than a step.

usage: loader.py [--workers N] [--steps N]; prints "done" at the end. A sample is unpacked by zlib, which is a decoder, and
changed in Python by a function called augment. The lines are marked.
"""

import argparse
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def augment(data, rounds):
    total = 0
    for number in range(rounds):
        total += number & 7  # mark: transform
    return total + data[0]


class Packed(Dataset):
    def __init__(self, length):
        self.length = length
        self.blob = zlib.compress(b"".join(number.to_bytes(4, "little") for number in range(1 << 19)))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        data = zlib.decompress(self.blob)  # mark: decode
        return torch.full((8,), float(augment(data, 40000) % 7)), index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Packed(arguments.steps * 4), batch_size=4, num_workers=arguments.workers)
    for inputs, labels in loader:  # mark: loop
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    print("done", flush=True)


if __name__ == "__main__":
    main()
