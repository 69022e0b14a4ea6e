"""Ranks that train over Gloo in Ray, on this machine: actors, or workers of Ray Train.

usage: ray_ranks.py actors|train N; prints "ready PID…", the pids by rank, once each has trained, and ends with its stdin.
"""

import os
import socket
import sys
import time

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@ray.remote(num_cpus=0)
class Pids:
    """The pids of the ranks that have trained."""

    def __init__(self):
        self.of_rank = {}

    def add(self, rank, pid):
        self.of_rank[rank] = pid

    def all(self):
        return dict(self.of_rank)


def train(rank, pids):
    """Trains until its process is killed."""
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256)
    step = 0
    while True:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        step += 1
        if step == 1:
            pids.add.remote(rank, os.getpid())
        time.sleep(0.005)


@ray.remote(num_cpus=1)
class Rank:
    """As Ray's own examples begin: the variables that torch reads are set in the actor."""

    def train(self, rank, world_size, port, pids):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
        dist.init_process_group("gloo")
        train(rank, pids)


def in_worker(config):
    train(dist.get_rank(), config["pids"])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def main():
    how, count = sys.argv[1], int(sys.argv[2])
    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False)
    pids = Pids.remote()
    if how == "actors":
        port = free_port()
        # Actors end with what refers to them.
        ranks = [Rank.remote() for _ in range(count)]
        for rank, actor in enumerate(ranks):
            actor.train.remote(rank, count, port, pids)
    else:
        import threading

        from ray.train import ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        trainer = TorchTrainer(
            in_worker, train_loop_config={"pids": pids}, scaling_config=ScalingConfig(num_workers=count), torch_config=TorchConfig(backend="gloo")
        )
        threading.Thread(target=trainer.fit, daemon=True).start()
    while len(found := ray.get(pids.all.remote())) < count:
        time.sleep(0.1)
    print("ready", *(found[rank] for rank in range(count)), flush=True)
    sys.stdin.buffer.read()
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
