"""No public example, but the loop that shows where a batch is freed: large ones, `x, y = next(iterator)`, a net that costs nothing."""

import torch
from clock import Clock, options
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Ones(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return torch.ones(3, 128, 128), index % 10


def main():
    args = options(steps=6000)
    clock, net = Clock(), nn.Linear(10, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    iterator = iter(DataLoader(Ones(), batch_size=64))
    # The one that it begins.
    clock.epochs = 1
    while clock.steps < args.steps:
        clock.enter("input")
        x, _ = next(iterator)
        clock.enter("optimizer")
        optimizer.zero_grad()
        clock.enter("other")
        inputs = x.flatten()[:10]
        clock.enter("forward")
        output = net(inputs)
        clock.enter("other")
        loss = output.sum()
        clock.enter("backward")
        loss.backward()
        clock.enter("optimizer")
        optimizer.step()
        clock.steps += 1
    clock.write(args.clock)


if __name__ == "__main__":
    main()
