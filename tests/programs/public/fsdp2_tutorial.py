"""In the shape of pytorch/examples FSDP2: `fully_shard` of each layer of a transformer and of the whole, Adam, a few steps on random tokens."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from clock import Clock, options
from ddp_tutorial import free_port
from gpt import GPT
from torch.distributed.fsdp import fully_shard


def rank_main(rank, args, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    clock = Clock()
    clock.enter("communication")
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.manual_seed(0)
    clock.enter("other")
    model = GPT()
    clock.enter("communication")
    mesh = dist.device_mesh.init_device_mesh("cpu", (args.ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    clock.enter("other")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(args.steps):
        clock.enter("other")
        tokens = torch.randint(0, 256, (8, 64))
        clock.enter("forward")
        _, loss = model(tokens, tokens)
        clock.enter("backward")
        loss.backward()
        clock.enter("optimizer")
        # clip_grad_norm_ by hand: the sum over the shards is a collective, and no part of the optimizer.
        norms = [parameter.grad.to_local().norm() for parameter in model.parameters()]
        norm = torch.stack(norms).square().sum()
        clock.enter("communication")
        dist.all_reduce(norm)
        clock.enter("optimizer")
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm.sqrt())
        optimizer.step()
        optimizer.zero_grad()
        clock.steps += 1
    clock.enter("communication")
    dist.destroy_process_group()
    clock.write(args.clock, rank)


def main():
    args = options(steps=240, ranks=2)
    mp.spawn(rank_main, args=(args, free_port()), nprocs=args.ranks)


if __name__ == "__main__":
    main()
