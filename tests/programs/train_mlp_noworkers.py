"""Training in one process: an MLP, a DataLoader without workers, Adam, a learning rate schedule.

Prints "ready PID" after its first step and "steps N loss L" at the end; --seconds or --steps.
"""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=0, help="stop after that many steps and not by the clock")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--omp", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.omp)
    width = arguments.width
    model = nn.Sequential(nn.Linear(128, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.9)
    data = TensorDataset(torch.randn(4096, 128), torch.randint(0, 10, (4096,)))
    steps, loss, begin = 0, torch.zeros(()), time.monotonic()

    def done():
        return steps >= arguments.steps if arguments.steps else time.monotonic() - begin > arguments.seconds

    while not done():
        for inputs, labels in DataLoader(data, batch_size=64, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            steps += 1
            if steps == 1:
                print("ready", os.getpid(), flush=True)
            if done():
                break
    print(f"steps {steps} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
