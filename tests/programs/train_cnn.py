"""A small but real training run: oneDNN convolutions, DataLoader workers, two OpenMP threads, backward, checkpoints.

Prints "ready PID" after its first step and "steps N loss L" at the end. --steps makes the result repeatable; else it
runs for --seconds. --hold goes on until it is killed.
"""

import argparse
import io
import os
import tempfile
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Compressed random images that are decoded, flipped and normalised, as a JPEG folder would be."""

    def __init__(self, count, side):
        draw = np.random.default_rng(0)
        self.side = side
        blobs = [zlib.compress(draw.integers(0, 64, (3, side, side), dtype=np.uint8).tobytes()) for _ in range(32)]
        self.images = [blobs[number % len(blobs)] for number in range(count)]
        self.labels = draw.integers(0, 10, count)

    def __len__(self):
        return len(self.images)

    def decode(self, index):
        raw = np.frombuffer(zlib.decompress(self.images[index]), dtype=np.uint8)
        return raw.reshape(3, self.side, self.side)

    def augment(self, image, index):
        image = image[:, :, ::-1] if index % 2 else image
        return (image.astype(np.float32) - 32.0) / 18.0

    def __getitem__(self, index):
        return torch.from_numpy(np.ascontiguousarray(self.augment(self.decode(index), index))), int(self.labels[index])


class Block(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, padding=1)

    def forward(self, images):
        images = torch.relu(self.norm(self.first(images)))
        return nn.functional.max_pool2d(torch.relu(self.second(images)), 2)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 16), Block(16, 32), Block(32, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        return self.head(self.blocks(images).mean(dim=(2, 3)))


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def save_checkpoint(model, optimizer, path):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    with open(path, "wb") as file:
        file.write(buffer.getvalue())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--steps", type=int, default=0, help="stop after that many steps and not by the clock")
    parser.add_argument("--hold", action="store_true", help="never stop")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"], default="fork")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--omp", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=40, help="steps")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.omp)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(
        Images(2048, arguments.side),
        batch_size=arguments.batch,
        shuffle=True,
        num_workers=arguments.workers,
        multiprocessing_context=arguments.start_method if arguments.workers else None,
        persistent_workers=arguments.workers > 0,
        drop_last=True,
    )
    steps, loss, begin = 0, 0.0, time.monotonic()

    def done():
        if arguments.hold:
            return False
        return steps >= arguments.steps if arguments.steps else time.monotonic() - begin > arguments.seconds

    with tempfile.TemporaryDirectory() as folder:
        while not done():
            for images, labels in loader:
                loss = train_step(model, optimizer, images, labels)
                steps += 1
                if steps == 1:
                    print("ready", os.getpid(), flush=True)
                if steps % arguments.checkpoint_every == 0:
                    save_checkpoint(model, optimizer, os.path.join(folder, "checkpoint.pt"))
                if done():
                    break
    print(f"steps {steps} loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
