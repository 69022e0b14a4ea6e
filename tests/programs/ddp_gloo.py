"""Two ranks that train with DistributedDataParallel over Gloo.

usage: python -m torch.distributed.run --standalone --nproc-per-node 2 ddp_gloo.py [--seconds 10]
Without torchrun it starts its ranks itself (--ranks). Each rank prints "ready PID rank R" after its first step and
"rank R steps N loss L" at the end. --slow-rank makes one rank the straggler that the others wait for.
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(arguments):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 256), torch.randint(0, 10, (64,))
    steps, begin, loss = 0, time.monotonic(), torch.zeros(())
    stop = torch.zeros(())
    # All ranks must take the same number of steps: rank 0 decides.
    while stop.item() == 0:
        if rank == arguments.slow_rank:
            time.sleep(0.02)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        steps += 1
        if steps == 1:
            print("ready", os.getpid(), "rank", rank, flush=True)
        if rank == 0:
            over = steps >= arguments.steps if arguments.steps else time.monotonic() - begin > arguments.seconds
            stop.fill_(float(over))
        dist.broadcast(stop, 0)
    print(f"rank {rank} steps {steps} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


def spawned(rank, arguments, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=arguments.ranks)
    train(arguments)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=0, help="stop after that many steps and not by the clock")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(spawned, args=(arguments, os.path.join(folder, "rendezvous")), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
