"""Trains with OpenMP, times its own phases, and samples from within whether its main thread is in libgomp.

usage: openmp_truth.py --log FILE [--work mlp|gpt|resnet|ddp] [--threads N]
Prints "ready PID" after its first steps, trains until a line or the end of stdin comes, then writes JSON to --log: {"tid", "steps",
"switches": [[moment_ns, phase], ...], "cpu" and "wall": [[moment_ns, 0 or 1], ...]}. From a switch on the thread is in that phase;
`user` is all between. The samples are those of openmp_truth.c, by the thread's CPU time and by the wall clock. `ddp` is two ranks
over Gloo with small layers, each with its own log (FILE.0, FILE.1); "ready PID" is of rank 0, and both train until the line comes.
"""

import argparse
import ctypes
import json
import os
import select
import sys
import tempfile
import threading
import time

import compiled
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

now = time.monotonic_ns
# Twice what a minute holds.
CAPACITY = 1 << 16
PERIOD_NS = 3_000_000


class Block(nn.Module):
    """A transformer's block: causal attention and an MLP."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.attention(self.before(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    """A tiny character model."""

    def __init__(self, letters=65, width=64, length=64, depth=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.head = nn.Linear(width, letters)

    def forward(self, letters):
        return self.head(self.blocks(self.tokens(letters) + self.places)).transpose(1, 2)


class Residual(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.short = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.second(self.first(x)) + self.short(x))


def resnet18():
    """Eighteen layers with weights, for small images."""
    layers, inner = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for outer in (64, 128, 256, 512):
        layers += [Residual(inner, outer, 1 if inner == outer else 2), Residual(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 10))


def workload(name):
    """(model, data, batch size)."""
    if name == "gpt":
        return Gpt(), TensorDataset(torch.randint(0, 65, (2048, 64)), torch.randint(0, 65, (2048, 64))), 12
    if name == "resnet":
        return resnet18(), TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))), 16
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, TensorDataset(torch.randn(4096, 128), torch.randint(0, 10, (4096,))), 64


def libgomp():
    """The addresses of libgomp's code."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split() for line in maps if "libgomp" in line]
    ranges = [line[0].split("-") for line in lines if "x" in line[1]]
    if not ranges:
        sys.exit("error: no libgomp is loaded")
    return min(int(low, 16) for low, _ in ranges), max(int(high, 16) for _, high in ranges)


class Sampler:
    """openmp_truth.c on the calling thread."""

    def __init__(self):
        self.library = compiled.load("openmp_truth.c")
        self.library.openmp_truth_stop.restype = ctypes.c_uint64
        kinds = ctypes.c_uint64 * (2 * CAPACITY)
        self.samples = (kinds(), kinds())
        low, high = libgomp()
        uint64 = ctypes.c_uint64
        if self.library.openmp_truth_start(uint64(low), uint64(high), uint64(PERIOD_NS), *self.samples, uint64(CAPACITY)) != 0:
            sys.exit("error: no timer could be made")

    def stop(self):
        """The samples, by CPU time and by the wall clock."""
        found = []
        for clock, values in enumerate(self.samples):
            count = self.library.openmp_truth_stop(clock)
            found.append([[values[2 * at], values[2 * at + 1]] for at in range(count)])
        return found


def train(work, log, is_over, ready):
    """Trains until it is over, and writes the log."""
    torch.manual_seed(0)
    model, data, size = workload(work)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    switches, steps, sampler = [], 0, None
    batches = iter(())
    while not is_over(steps):
        switches.append((now(), "input"))
        batch = next(batches, None)
        switches.append((now(), "user"))
        if batch is None:
            batches = iter(DataLoader(data, batch_size=size, shuffle=True, drop_last=True))
            continue
        switches.append((now(), "forward"))
        said = model(batch[0])
        # A functional loss is called outside of modules, and is the script's own (README, Phases).
        switches.append((now(), "user"))
        loss = functional.cross_entropy(said, batch[1])
        switches.append((now(), "optimizer"))
        optimizer.zero_grad()
        switches.append((now(), "backward"))
        loss.backward()
        switches.append((now(), "optimizer"))
        optimizer.step()
        switches.append((now(), "user"))
        steps += 1
        if steps == 5:
            sampler = Sampler()
            ready()
    cpu, wall = sampler.stop()
    with open(log, "w", encoding="utf-8") as file:
        json.dump({"tid": threading.get_native_id(), "steps": steps, "switches": switches, "cpu": cpu, "wall": wall}, file)


def rank_main(rank, rendezvous, log, threads):
    """One of the two ranks. Both take the same number of steps: rank 0 decides."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}/store", rank=rank, world_size=2)
    over = torch.zeros(())

    def is_over(steps):
        if steps % 50 == 0:
            over.fill_(float(os.path.exists(f"{rendezvous}/over")))
            dist.broadcast(over, 0)
        return over.item() > 0

    def ready():
        if rank == 0:
            print("ready", os.getpid(), flush=True)

    train("mlp", f"{log}.{rank}", is_over, ready)
    # Gloo's own threads need not be waited for.
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--work", choices=["mlp", "gpt", "resnet", "ddp"], default="mlp")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.work == "ddp":
        with tempfile.TemporaryDirectory() as folder:
            ranks = mp.spawn(rank_main, args=(folder, arguments.log, arguments.threads), nprocs=2, join=False)
            sys.stdin.readline()
            with open(f"{folder}/over", "w", encoding="utf-8"):
                pass
            while not ranks.join():
                pass
        print("done", flush=True)
        return
    torch.set_num_threads(arguments.threads)

    def is_over(_):
        return bool(select.select([sys.stdin], [], [], 0)[0])

    train(arguments.work, arguments.log, is_over, lambda: print("ready", os.getpid(), flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    main()
