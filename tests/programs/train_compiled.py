"""torch.compile on the CPU: a model that is compiled in two parts, and twice.

argv: steps. The model has one planted graph break, and after half of the steps its batches have another size, for which it is
compiled anew. Prints "done".
"""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, batch):  # mark: function
        hidden = self.first(batch)
        for _ in range(3):
            hidden = torch.tanh(hidden) + torch.sin(hidden)
        torch._dynamo.graph_break()  # mark: break
        for _ in range(3):
            hidden = torch.cos(hidden) * torch.exp(-hidden.abs())
        return self.second(hidden)


def main(steps):
    torch.set_num_threads(1)
    model = Net()
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in (8192, 6144):
        batch = torch.randn(rows, 256)
        for _ in range(steps // 2):
            loss = compiled(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
