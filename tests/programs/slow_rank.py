"""Ranks over Gloo, of which one is slower: its Python transform of each batch takes longer.

usage: python -m torch.distributed.run --standalone --nproc-per-node 2 slow_rank.py
With --ddp gradients are averaged by DistributedDataParallel; without, by an all_reduce of the script's own. With --output
each rank writes FOLDER/rankN.json at the end: the begin and end of every collective and of every transform
(CLOCK_MONOTONIC, seconds), and of the loop.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def slow_transform(batch, rounds):
    total = 0
    for number in range(rounds):
        total += number & 7  # mark: transform
    return batch + total % 3


def average(model, spans):
    """What DDP does, by hand."""
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    begin = time.monotonic()
    dist.all_reduce(gradients)  # mark: all_reduce
    spans.append((begin, time.monotonic()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=600_000)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--output")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if arguments.ddp:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, labels = torch.randn(16, 64), torch.randint(0, 10, (16,))
    collectives, transforms = [], []
    # Both begin at once, so that the first wait is a step's as well.
    dist.barrier()
    started = time.monotonic()
    for _ in range(arguments.steps):
        begin = time.monotonic()
        rounds = arguments.rounds if rank == arguments.slow_rank else arguments.rounds // 10
        inputs = slow_transform(batch, rounds)
        transforms.append((begin, time.monotonic()))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # mark: backward
        if not arguments.ddp:
            average(model, collectives)
        optimizer.step()
    ended = time.monotonic()
    if arguments.output:
        with open(os.path.join(arguments.output, f"rank{rank}.json"), "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "loop": (started, ended), "collectives": collectives, "transforms": transforms}, file)
    dist.destroy_process_group()
    # Gloo's threads live on, and one that frees a tensor while the interpreter ends aborts the process
    # (https://github.com/pytorch/pytorch/issues/190489). So the process leaves without that.
    os._exit(0)


if __name__ == "__main__":
    main()
