"""A plain loop on the CPU: convolutions, gradient clipping, a schedule, evaluation, checkpoints, data made in the loop's own process."""

import argparse
import os
import tempfile
import time

import numpy as np
import switches
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    """Images that are made, blurred and normalised in numpy."""

    def __init__(self, count, side):
        self.count, self.side, self.draw = count, side, np.random.default_rng(0)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = self.draw.standard_normal((3, self.side, self.side), dtype=np.float32)
        for axis in (1, 2):
            image = (image + np.roll(image, 1, axis) + np.roll(image, -1, axis)) / 3
        return torch.from_numpy((image - image.mean()) / image.std()), index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.GELU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10))

    def forward(self, images):
        return self.head(self.body(self.stem(images)))


def accuracy(model, batches):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in batches:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right


def summed_up(losses):
    """What a script does on the side."""
    ordered = sorted(losses)
    return sum(ordered) / len(ordered), ordered[len(ordered) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--log", required=True)
    arguments = parser.parse_args()
    switches.begin()
    switches.training()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = switches.module(Net())
    criterion = switches.module(nn.CrossEntropyLoss())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loader = DataLoader(Noise(640, 48), batch_size=32)
    begin, losses, steps = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        while time.monotonic() - begin < arguments.seconds:
            for images, labels in loader:
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
                steps += 1
            schedule.step()
            accuracy(model, [batch for batch, _ in zip(loader, range(4))])
            summed_up(losses)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            model.load_state_dict(torch.load(path)["model"])
    switches.write(arguments.log)
    print("steps", steps, flush=True)


if __name__ == "__main__":
    main()
