"""Two ranks that train with DistributedDataParallel over Gloo.

usage: python -m torch.distributed.run --standalone --nproc-per-node 2 ddp_gloo.py [--seconds 10]
Without torchrun, srun and mpirun it starts its ranks itself (--ranks). Each rank prints "ready PID rank R" after its first step and
"rank R steps N loss L" at the end. --slow-rank makes one rank the straggler that the others wait for. With --workers
the batches come from DataLoader workers, started by --start-method; --helper has each rank start a program that is no
Python. With --epochs the ranks share --samples by a DistributedSampler in each epoch.
"""

import argparse
import os
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# What srun, Open MPI's mpirun and MPICH's set.
LAUNCHERS = [("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]


class Rows(Dataset):
    def __init__(self, length=1 << 20):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((256,), float(index % 7)), index % 10


def batches_of(arguments):
    """The same batch again and again, or what DataLoader workers make, or epochs."""
    if arguments.epochs:
        rows = Rows(arguments.samples)
        loader = DataLoader(rows, batch_size=64, sampler=DistributedSampler(rows))
        for _ in range(arguments.epochs):
            yield from loader
        return
    if not arguments.workers:
        batch = torch.randn(64, 256), torch.randint(0, 10, (64,))
        while True:
            yield batch
    yield from DataLoader(Rows(), batch_size=64, num_workers=arguments.workers, multiprocessing_context=arguments.start_method)


def train(arguments):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if arguments.epochs:
        arguments.steps = arguments.epochs * -(-arguments.samples // dist.get_world_size() // 64)
    batches = batches_of(arguments)
    helper = subprocess.Popen(["sleep", "600"]) if arguments.helper else None
    steps, begin, loss = 0, time.monotonic(), torch.zeros(())
    stop = torch.zeros(())
    # All ranks must take the same number of steps: rank 0 decides.
    while stop.item() == 0:
        if rank == arguments.slow_rank:
            time.sleep(0.02)
        inputs, labels = next(batches)
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
    if helper:
        helper.kill()
        helper.wait()
    # Workers are ended by their iterator.
    batches.close()
    dist.destroy_process_group()
    # As slow_rank.py ends, and for the same reason.
    os._exit(0)


def spawned(rank, arguments, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=arguments.ranks)
    train(arguments)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=0, help="stop after that many steps and not by the clock")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start-method", choices=["fork", "spawn"], default="fork")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--helper", action="store_true", help="a child that is no Python")
    arguments = parser.parse_args()
    # These set no address: MASTER_ADDR and MASTER_PORT are the job script's.
    for rank, world_size in LAUNCHERS:
        if rank in os.environ and "RANK" not in os.environ:
            os.environ.update(RANK=os.environ[rank], WORLD_SIZE=os.environ[world_size])
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(spawned, args=(arguments, os.path.join(folder, "rendezvous")), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
