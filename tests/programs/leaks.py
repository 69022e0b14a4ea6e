"""A small trainer whose memory grows, or does not: what torchspy says of it is compared with what is planted.

usage: leaks.py none|list|closure [--seconds 40]
`list` keeps a tensor of each step, `closure` keeps each batch in a function, `none` keeps nothing.
Prints "ready PID" after the first step, and a line of JSON at the end: steps, and the bytes that were planted in the trainer.
"""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 1 << 24

    def __getitem__(self, index):
        return torch.full((256,), float(index % 7)), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("leak", choices=["none", "list", "closure"])
    parser.add_argument("--seconds", type=float, default=40)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Rows(), batch_size=8, num_workers=1, multiprocessing_context="fork")
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    kept, callbacks, planted = [], [], 0
    begin = time.monotonic()
    for steps, (inputs, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if arguments.leak == "list":
            kept.append(torch.zeros(8192) + loss.detach())
            planted += 8192 * 4
        if arguments.leak == "closure":
            batch = inputs.repeat(4, 1)
            callbacks.append(lambda batch=batch: batch.sum())
            planted += batch.numel() * 4
        if steps == 1:
            print("ready", os.getpid(), flush=True)
        # Steps of a length that does not depend on the machine's speed.
        time.sleep(0.02)
        if time.monotonic() - begin > arguments.seconds:
            break
    print(json.dumps({"steps": steps, "planted": planted}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
