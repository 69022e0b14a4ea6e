"""In the shape of the multi-GPU DDP tutorial: a Trainer class, `next(iter(loader))` once an epoch for a look at its size, a snapshot."""

import os
import socket
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from clock import Clock, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Pairs(Dataset):
    def __init__(self, count):
        self.data = [(torch.rand(256), torch.rand(64)) for _ in range(count)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, rank, model, loader, optimizer, clock):
        self.rank, self.loader, self.optimizer, self.clock = rank, loader, optimizer, clock
        clock.enter("communication")
        self.model = DistributedDataParallel(model)
        clock.enter("other")

    def run_batch(self, source, targets):
        clock = self.clock
        clock.enter("optimizer")
        self.optimizer.zero_grad()
        clock.enter("forward")
        output = self.model(source)
        clock.enter("other")
        loss = nn.functional.mse_loss(output, targets)
        clock.enter("backward")
        loss.backward()
        clock.enter("optimizer")
        self.optimizer.step()
        clock.steps += 1

    def run_epoch(self, epoch):
        self.clock.enter("input")
        len(next(iter(self.loader))[0])
        self.loader.sampler.set_epoch(epoch)
        for source, targets in self.loader:
            self.run_batch(source, targets)
            self.clock.enter("input")
        self.clock.enter("other")
        self.clock.epochs += 1

    def save(self):
        self.clock.enter("checkpoint")
        with tempfile.TemporaryFile() as file:
            torch.save(self.model.module.state_dict(), file)
        self.clock.enter("other")

    def train(self, epochs):
        for epoch in range(epochs):
            self.run_epoch(epoch)
            if self.rank == 0 and epoch % 5 == 0:
                self.save()


def rank_main(rank, args, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    clock = Clock()
    clock.enter("communication")
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    clock.enter("other")
    torch.manual_seed(0)
    data = Pairs(args.count)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))
    loader = DataLoader(data, batch_size=32, shuffle=False, sampler=DistributedSampler(data))
    Trainer(rank, model, loader, torch.optim.SGD(model.parameters(), lr=1e-3), clock).train(args.epochs)
    clock.enter("communication")
    dist.destroy_process_group()
    clock.write(args.clock, rank)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    args = options(epochs=100, count=2048, ranks=2)
    mp.spawn(rank_main, args=(args, free_port()), nprocs=args.ranks)


if __name__ == "__main__":
    main()
