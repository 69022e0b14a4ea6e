"""Ranks that train over NCCL, each on its own device, with DistributedDataParallel or FSDP.

usage: scripts/gpu-sim --gpus 2 -- python -m torch.distributed.run --standalone --nproc-per-node 2 gpu_ranks.py [--wrapper fsdp]
torch 2.15 uses its new backend ("nccl2"); with TORCH_DIST_USE_NCCL2=0 in the environment the one before, with its threads
pt_nccl_watchdg and pt_nccl_heartbt. --slow-rank makes one rank the straggler that the others wait for, by a line that sleeps, or
computes (--slow-by spin), for --slow-ms in each step. Each rank prints "ready PID rank R" after its first step, and one line of
JSON at the end: rank, pid, tid, steps, seconds, the begin and end of each step, of each phase, and of the setup of the process
group (CLOCK_MONOTONIC, ns), and with --collectives what each of torch.distributed's collectives gave.
"""

import argparse
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from gpu_train import Clock
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def say(line):
    """In one write: the ranks share a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def be_slow(arguments):
    seconds = arguments.slow_ms / 1000
    if arguments.slow_by == "sleep":
        time.sleep(seconds)  # mark: slow sleep
        return
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(5_000))  # mark: slow spin


def wrapped(arguments, device):
    layers = []
    for _ in range(arguments.layers):
        layers += [nn.Linear(arguments.width, arguments.width), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)
    if arguments.wrapper == "ddp":
        return DistributedDataParallel(model, device_ids=[device.index])
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def collectives(device):
    """Results of small collectives, as the host reads them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = {}
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 100 * rank})
    results["all_gather_object"] = [(entry["rank"], len(entry["text"])) for entry in objects]
    # Of several objects torch concatenates the bytes with a kernel, and kernels compute nothing.
    told = [f"from {rank}"]
    dist.broadcast_object_list(told, src=1)
    results["broadcast_object_list"] = told
    mine = torch.tensor([float(rank + 1), 10.0 * rank, 1.0, 2.0, 3.0]).to(device)
    for name, operation in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX), ("avg", dist.ReduceOp.AVG)):
        copy = torch.tensor([float(rank + 1), 10.0 * rank, 1.0, 2.0, 3.0]).to(device)
        dist.all_reduce(copy, op=operation)
        results[f"all_reduce {name}"] = copy.cpu().tolist()
    dist.broadcast(mine, src=ranks - 1)
    results["broadcast"] = mine.cpu().tolist()
    scattered = torch.zeros(3, dtype=torch.int64).to(device)
    dist.reduce_scatter_tensor(scattered, torch.arange(3 * ranks).to(device))
    results["reduce_scatter"] = scattered.cpu().tolist()
    exchanged = torch.zeros(ranks * 3, dtype=torch.int64).to(device)
    dist.all_to_all_single(exchanged, (torch.arange(ranks * 3) + 100 * rank).to(device))
    results["all_to_all"] = exchanged.cpu().tolist()
    ring = torch.zeros(4, dtype=torch.int64).to(device)
    gift = torch.full((4,), rank, dtype=torch.int64)
    operations = [
        dist.P2POp(dist.isend, gift.to(device), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, ring, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    results["ring"] = ring.cpu().tolist()
    passed = torch.full((4,), 7 + rank, dtype=torch.int64).to(device)
    if rank == 0:
        dist.send(passed, 1)
    elif rank == 1:
        dist.recv(passed, 0)
    results["send"] = passed.cpu().tolist()
    half = dist.new_group(list(range(ranks // 2)))
    counted = torch.ones(4, dtype=torch.int64).to(device)
    if rank < ranks // 2:
        dist.all_reduce(counted, group=half)
    results["new_group"] = counted.cpu().tolist()
    world = dist.group.WORLD
    split = dist.split_group(world, [list(range(0, ranks, 2)), list(range(1, ranks, 2))]) if world.bound_device_id else None
    if split is not None:
        counted = torch.full((4,), rank, dtype=torch.int64).to(device)
        dist.all_reduce(counted, group=split)
        results["split_group"] = counted.cpu().tolist()
    dist.barrier()
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrapper", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-by", choices=["sleep", "spin"], default="sleep")
    parser.add_argument("--slow-ms", type=float, default=50)
    parser.add_argument("--barrier", action="store_true", help="a barrier in each step")
    parser.add_argument("--lazy", action="store_true", help="no device is bound: communicators are made at their first use")
    parser.add_argument("--collectives", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    begin = time.monotonic_ns()
    dist.init_process_group("nccl", device_id=None if arguments.lazy else device)  # mark: init
    dist.barrier()  # mark: first barrier
    setup = (begin, time.monotonic_ns())
    rank = dist.get_rank()
    results = collectives(device) if arguments.collectives else None
    model = wrapped(arguments, device)
    # As FSDP is used; SGD has no state that counts.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(64, arguments.width)
    clock = Clock(arguments.steps)
    clock.start_step()
    for step in range(arguments.steps):
        if rank == arguments.slow_rank:
            be_slow(arguments)
        clock.at("optimizer")
        optimizer.zero_grad()
        clock.at("other")
        inputs = batch.to(device)
        clock.at("forward")
        loss = model(inputs).sum()
        clock.at("backward")
        loss.backward()  # mark: backward
        clock.at("optimizer")
        optimizer.step()
        clock.at("other")
        if arguments.barrier:
            dist.barrier()  # mark: barrier
        loss.item()  # mark: item
        clock.end_step()
        if step == 0:
            say(f"ready {os.getpid()} rank {rank}")
    steps = clock.step_ns
    report = {
        "rank": rank,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "steps": len(steps),
        "seconds": (steps[-1][1] - steps[0][0]) / 1e9 if steps else 0,
        "setup": setup,
        "spans": steps,
        "phases": clock.phases,
        "collectives": results,
    }
    # In turns: the ranks share a pipe, and a long line is more than one write.
    for turn in range(dist.get_world_size()):
        if turn == rank:
            say(json.dumps(report))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
