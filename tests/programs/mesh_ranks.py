"""Four ranks over Gloo that train on a device mesh of 2 x 2: gradients are averaged along "dp", activations along "tp".

usage: python -m torch.distributed.run --standalone --nproc-per-node 4 mesh_ranks.py [--held variable]
--held says where the mesh is: in a variable of main, only in the optimizer's parameters (as DTensors), or nowhere on a frame.
--names names its dimensions, --order reverses its ranks. With --older main has copies of it with the attributes that meshes had in
older versions of torch: of 2.4, with the same names, and of 2.10, of one dimension. --slow-rank sleeps in each step.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

HIDDEN = []


def make_mesh(arguments, names):
    if arguments.order == "reversed":
        return DeviceMesh("cpu", torch.arange(3, -1, -1).reshape(2, 2), mesh_dim_names=names)
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def older_meshes(mesh):
    """What torch/distributed/device_mesh.py of 2.4 and 2.10 keeps of a mesh and its layout."""
    older = type("DeviceMesh", (), {})
    of_2_4, of_2_10 = older(), older()
    of_2_4.device_type = "cpu"
    of_2_4.mesh = mesh.mesh.clone()
    of_2_4.mesh_dim_names = tuple(mesh.mesh_dim_names)
    of_2_4._flatten_mesh_list = tuple(mesh.mesh.flatten().tolist())
    of_2_4._coordinate_on_dim = list(mesh.get_coordinate())
    of_2_10._layout = type("_MeshLayout", (), {})()
    of_2_10._layout.shape = 4
    of_2_10._mesh_dim_names = ("world",)
    of_2_10._root_mesh = None
    of_2_10._flatten_mesh_list = tuple(range(4))
    of_2_10._coordinate_on_dim = [dist.get_rank()]
    return of_2_4, of_2_10


def groups_of(arguments):
    """The groups, the mesh if main is to have it, and its older copies."""
    names = tuple(arguments.names.split(","))
    mesh = make_mesh(arguments, names)
    groups = [mesh.get_group(name) for name in names]
    if arguments.held == "parameters":
        HIDDEN.append((mesh,))
    older = older_meshes(mesh) if arguments.older else (None, None)
    return groups, mesh if arguments.held == "variable" else None, *older


def train(model, parameters, groups, arguments):
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    batch, labels = torch.randn(16, 64), torch.randint(0, 10, (16,))
    for step in range(arguments.steps):
        if dist.get_rank() == arguments.slow_rank:
            time.sleep(0.02)
        optimizer.zero_grad()
        outputs = model(batch)
        nn.functional.cross_entropy(outputs, labels).backward()
        for group in groups:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
        optimizer.step()
        if step == 0:
            print("ready", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--held", choices=["variable", "parameters", "nowhere"], default="variable")
    parser.add_argument("--older", action="store_true")
    parser.add_argument("--names", default="dp,tp")
    parser.add_argument("--order", choices=["ascending", "reversed"], default="ascending")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--slow-rank", type=int, default=-1)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    groups, mesh, of_2_4, of_2_10 = groups_of(arguments)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    parameters = list(model.parameters())
    if HIDDEN:
        # Of no use to the model: what is looked for is the mesh behind it.
        parameters.insert(0, nn.Parameter(distribute_tensor(torch.zeros(4), HIDDEN[0][0], [Replicate()] * 2)))
    train(model, parameters, groups, arguments)
    dist.destroy_process_group()
    # As slow_rank.py ends, and for the same reason.
    assert arguments.older == (of_2_4 is not None) == (of_2_10 is not None)
    assert (arguments.held == "variable") == (mesh is not None)
    os._exit(0)


if __name__ == "__main__":
    main()
