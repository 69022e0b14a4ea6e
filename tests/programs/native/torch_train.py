"""A small CNN and a transformer layer train until standard input ends: oneDNN's run-time code, MKL, sorting, backward."""

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
attention = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
optimizer = torch.optim.AdamW([*model.parameters(), *attention.parameters()])
ready = False
while True:
    inputs = torch.randn(8, 3, 32, 32)
    targets = torch.randint(10, (8,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    attention(torch.randn(8, 32, 64)).square().mean().backward()
    torch.randn(20000).sort()
    optimizer.step()
    if not ready:
        print("ready", flush=True)
        ready = True
