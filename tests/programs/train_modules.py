"""A training run whose modules are called in every way: in a Sequential, by index of a ModuleList, within a wrapper, in evaluation.

Prints one line of JSON first, by name what named_modules() has of the model: class. Then trains for argv[1] steps, evaluates for half as
many, and prints "done".
"""

import json
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, batch):
        return torch.relu(self.norm(self.conv(batch))) + batch


class Net(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(inplace=True))
        self.layers = nn.ModuleList(Block(channels) for _ in range(3))
        self.downsample = None
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.ModuleDict({"classes": nn.Linear(channels, 10)})

    def forward(self, batch):
        batch = self.stem(batch)
        for index in range(3):
            batch = self.layers[index](batch)
        return self.head["classes"](self.pool(batch).flatten(1))


def main(steps):
    torch.set_num_threads(1)
    model = Net()
    print(json.dumps({name: type(module).__name__ for name, module in model.named_modules()}), flush=True)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, target = torch.ones(16, 3, 48, 48), torch.zeros(16, dtype=torch.long)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(batch), target).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(steps // 2):
            model(batch)
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
