"""In the shape of nanoGPT's train.py: no DataLoader but `get_batch` of a memory map, gradient accumulation, AdamW, no epochs."""

import os
import tempfile

import numpy
import torch
from clock import Clock, options
from gpt import GPT

SIZE, LENGTH = 8, 64


def get_batch(path):
    data = numpy.memmap(path, dtype=numpy.uint16, mode="r")
    at = torch.randint(len(data) - LENGTH, (SIZE,))
    x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(numpy.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(numpy.int64)) for i in at])
    return x, y


def main():
    args = options(steps=200, accumulate=2)
    torch.manual_seed(1337)
    clock = Clock()
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.bin")
        numpy.random.randint(0, 256, 1_000_000).astype(numpy.uint16).tofile(path)
        clock.enter("input")
        x, y = get_batch(path)
        while clock.steps < args.steps:
            for _ in range(args.accumulate):
                clock.enter("forward")
                _, loss = model(x, y)
                loss = loss / args.accumulate
                clock.enter("input")
                x, y = get_batch(path)
                clock.enter("backward")
                loss.backward()
            clock.enter("optimizer")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            clock.enter("other")
            loss.item()
            clock.steps += 1
        clock.write(args.clock)


if __name__ == "__main__":
    main()
