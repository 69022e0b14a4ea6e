"""Activation checkpointing on the CPU: blocks whose forward is computed again in backward.

argv: `reentrant` or `plain`, then steps. Prints "done".
"""

import sys

import torch

# The first call of a checkpoint imports it, which may take longer than all steps.
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Work in a module of its own, and a product of the block itself."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, batch):
        return torch.tanh(self.linear(batch)) @ self.weight


class Net(nn.Module):
    def __init__(self, reentrant, width=512):
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))

    def forward(self, batch):
        for block in self.blocks:
            batch = checkpoint(block, batch, use_reentrant=self.reentrant)
        return batch


def main(form, steps):
    torch.set_num_threads(1)
    model = Net(form == "reentrant")
    # The reentrant form makes a graph only where an input needs one.
    batch = torch.randn(512, 512, requires_grad=True)
    for _ in range(steps):
        loss = model(batch).square().mean()
        loss.backward()  # mark: backward
        model.zero_grad()
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
