"""Two known operators and little else: matrix products in a module's forward, and in backward.

The lines that call them are marked; a test finds the marks. Prints "done" at the end.
"""

import sys

import torch
from torch import nn


class Heavy(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(side, side) / side)

    def forward(self, batch):
        return torch.mm(batch, self.weight)  # mark: forward


def main(steps, side):
    torch.set_num_threads(1)
    model = Heavy(side)
    batch = torch.ones(side, side, requires_grad=True)
    for _ in range(steps):
        loss = model(batch).sum()
        loss.backward()  # mark: backward
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
