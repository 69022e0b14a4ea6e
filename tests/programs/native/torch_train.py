"""A small CNN that trains until standard input ends: convolutions by oneDNN's run-time code, matrix products by MKL, backward."""

import os
import sys
import threading

import torch
from torch import nn

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 256),
    nn.GELU(),
    nn.Linear(256, 10),
)
optimizer = torch.optim.AdamW(model.parameters())
ready = False
while True:
    inputs = torch.randn(8, 3, 32, 32)
    targets = torch.randint(10, (8,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if not ready:
        print("ready", flush=True)
        ready = True
