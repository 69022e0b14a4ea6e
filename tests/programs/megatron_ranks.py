"""Ranks over Gloo in the groups of Megatron Core: four in two pipeline stages of two tensor-parallel ranks each, unless told otherwise.

usage: python -m torch.distributed.run --standalone --nproc-per-node 4 megatron_ranks.py [--steps 100] [--pipeline N] [--context N] [--expert N]
--expert: so many ranks share experts, each of which is whole on its rank.
The groups are made by megatron-core's own parallel_state. Its packages are imported without their __init__.py, which import all of it.
Ranks of a stage average their gradients; stages train models of different sizes.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import types

import torch
import torch.distributed as dist
from torch import nn


def parallel_state():
    """The module alone."""
    root = importlib.util.find_spec("megatron").submodule_search_locations[0]
    for name, folder in (("megatron", root), ("megatron.core", os.path.join(root, "core"))):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [folder]
    return importlib.import_module("megatron.core.parallel_state")


def train(steps, size, group):
    model = nn.Sequential(nn.Linear(64, size), nn.ReLU(), nn.Linear(size, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, labels = torch.randn(16, 64), torch.randint(0, 10, (16,))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
        optimizer.step()
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pipeline", type=int, default=2)
    parser.add_argument("--context", type=int, default=1)
    parser.add_argument("--expert", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = parallel_state()
    state.initialize_model_parallel(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=arguments.pipeline,
        context_parallel_size=arguments.context,
        expert_model_parallel_size=arguments.expert,
        expert_tensor_parallel_size=1 if arguments.expert > 1 else None,
    )
    stage = state.get_pipeline_model_parallel_rank()
    train(arguments.steps, 1024 if stage else 256, state.get_tensor_model_parallel_group())
    # As slow_rank.py ends, and for the same reason.
    os._exit(0)


if __name__ == "__main__":
    main()
