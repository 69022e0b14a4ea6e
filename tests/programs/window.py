"""Trains until its standard input ends. Each step has the same operators, on inputs of the same shapes.

With a file's name it writes into that file, as JSON, what torch.profiler itself counts in a few further steps: calls by operator and shapes.
Under torchrun its ranks train together.
"""

import json
import os
import sys
import threading

import torch
from torch import nn

COUNTED = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 10)

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


def step(net, optimizer, inputs, targets):
    loss = nn.functional.cross_entropy(net(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def count(net, optimizer, inputs, targets):
    """Calls per step by torch.profiler's own sums, of steps between two ends of Optimizer.step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(COUNTED):
            step(net, optimizer, inputs, targets)
    sums = profiler.key_averages(group_by_input_shape=True)
    return [[row.key, json.dumps(row.input_shapes), row.count / COUNTED] for row in sums]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    ended = threading.Event()

    def wait():
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    net = Net()
    model = nn.parallel.DistributedDataParallel(net) if "RANK" in os.environ else net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    inputs, targets = torch.randn(32, 64), torch.randint(0, 10, (32,))
    over = False
    while not over:
        for _ in range(20):
            step(model, optimizer, inputs, targets)
            # A step of some 10 ms.
            ended.wait(0.01)
        over = ended.is_set()
        if "RANK" in os.environ:
            # All ranks end with the same step.
            sum_of_ranks = torch.tensor([float(over)])
            torch.distributed.all_reduce(sum_of_ranks)
            over = sum_of_ranks.item() > 0
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(count(net, optimizer, inputs, targets), file)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
        # A thread of Gloo that frees a tensor while the interpreter ends aborts the process (https://github.com/pytorch/pytorch/issues/190489).
        os._exit(0)


main()
