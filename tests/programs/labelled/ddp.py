"""Two ranks of DistributedDataParallel on Gloo, one of them slower; also a sum of a metric and a barrier now and then.

Run by `python -m torch.distributed.run --standalone --nproc-per-node 2 ddp.py`; rank R writes its log to --switches.R.
"""

import argparse
import os
import time

import switches
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def augment(images, rank):
    """The second rank does more by itself, in Python."""
    if rank == 1:
        return sum(number & 3 for number in range(1_000_000)) * 0 + images
    return images


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--switches", required=True)
    arguments = parser.parse_args()
    switches.begin()
    switches.training()
    switches.around(DistributedDataParallel, "__init__", "communication")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 10))
    model = DistributedDataParallel(switches.module(net), bucket_cap_mb=2)
    # What the wrapper does around the module it wraps is there for the collectives.
    switches.module(model, "communication")
    criterion = switches.module(nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.randn(4096, 1, 32, 32), torch.randint(0, 10, (4096,))), batch_size=512)
    begin, steps, stop = time.monotonic(), 0, torch.zeros(())
    while stop.item() == 0:
        for images, labels in loader:
            loss = criterion(model(augment(images, rank)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % 4 == 0:
                total = loss.detach()
                dist.all_reduce(total)
        dist.barrier()
        # All ranks take the same number of steps: the first decides.
        stop.fill_(float(time.monotonic() - begin > arguments.seconds))
        dist.broadcast(stop, 0)
    dist.destroy_process_group()
    switches.write(f"{arguments.switches}.{os.environ['RANK']}")
    print("steps", steps, flush=True)
    # As slow_rank.py ends, and for the same reason.
    os._exit(0)


if __name__ == "__main__":
    main()
