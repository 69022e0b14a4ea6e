"""Stands still in several places of torch and numpy at once, one thread each, then says "ready"."""

import os
import sys
import threading
import time

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

trainer = os.getpid()
threads = 5
standing = threading.Barrier(threads + 1)


def stand_still(*_):
    standing.wait()
    time.sleep(3600)


def in_forward_hook():
    layer = nn.Conv2d(3, 8, 3)
    layer.register_forward_hook(stand_still)
    nn.Sequential(layer, nn.ReLU())(torch.randn(2, 3, 16, 16))


def in_backward_hook():
    leaf = torch.randn(4, 4, requires_grad=True)
    product = leaf @ leaf
    product.register_hook(stand_still)
    torch.relu(product).sum().backward()


class Compares:
    def __lt__(self, other):
        stand_still()


def in_numpy_sort():
    numpy.sort(numpy.array([Compares(), Compares()], dtype=object))


class Items(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        while index and os.getppid() == trainer:  # A worker outlives a trainer that is killed.
            time.sleep(0.2)
        return torch.zeros(1)


# The worker is forked while there is no other thread whose locks it could inherit.
batches = iter(DataLoader(Items(), num_workers=1))
next(batches)


def in_data_loader():
    standing.wait()
    next(batches)


def in_map():
    list(map(stand_still, [1]))


for body in (in_forward_hook, in_backward_hook, in_numpy_sort, in_data_loader, in_map):
    threading.Thread(target=body, daemon=True).start()
standing.wait()
print("ready", flush=True)
sys.stdin.read()  # Until the test ends, however it does.
os._exit(0)
