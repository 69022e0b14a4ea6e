"""Modules and optimizers of every kind whose memory `dump --memory` reads: what it says is compared with what is printed.

usage: held_memory.py CASE
Prints "ready", then a line of JSON with the bytes of parameters, gradients, optimizer state and buffers, each tensor's storage once,
and waits for a line on standard input. The case `training` trains until then, and `plain` has no torch. `cuda` is for the simulated node, and says what torch's allocator has
given in all (`allocated`).
"""

import json
import sys
import threading

CASE = sys.argv[1]
if CASE == "plain":
    print("ready", flush=True)
    print("{}", flush=True)
    sys.stdin.readline()
    sys.exit()

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs):
        return inputs + self.mlp(self.norm(inputs))


class Transformer(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.wte = nn.Embedding(1000, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool))

    def forward(self, tokens):
        hidden = self.wte(tokens)
        for block in self.h:
            hidden = block(hidden)
        return hidden


class Language(nn.Module):
    """Tied weights: the head's are the embedding's."""

    def __init__(self, width=64, layers=4):
        super().__init__()
        self.transformer = Transformer(width, layers)
        self.lm_head = nn.Linear(width, 1000, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.transformer(tokens))


def bytes_of(tensors):
    """Of the storages of tensors that are no views of a part."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    storages = [tensor.untyped_storage() for tensor in local if tensor.layout is torch.strided]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def tensors_in(state):
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors_in(value)]
    if isinstance(state, (list, tuple)):
        return [tensor for value in state for tensor in tensors_in(value)]
    return []


def truth(modules, optimizers):
    parameters = [parameter for module in modules for parameter in module.parameters()]
    known = set(map(id, parameters))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters += [parameter for parameter in group["params"] if id(parameter) not in known]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [tensor for optimizer in optimizers for tensor in tensors_in(dict(optimizer.state))]
    buffers = [buffer for module in modules for buffer in module.buffers()]
    return {
        "parameters": bytes_of(parameters),
        "gradients": bytes_of(gradients),
        "optimizer_state": bytes_of(states),
        "buffers": bytes_of(buffers),
        "state_dict": bytes_of([value for module in modules for value in module.state_dict().values()]),
    }


def report(modules, optimizers=()):
    print("ready", flush=True)
    print(json.dumps(truth(modules, optimizers)), flush=True)


def report_of_device(model, optimizer):
    # Memory of cuBLAS, which comes from the allocator, too.
    torch._C._cuda_clearCublasWorkspaces()
    print("ready", flush=True)
    print(json.dumps({**truth([model], [optimizer]), "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}), flush=True)


def step(model, optimizer, tokens):
    loss = model(tokens).float().square().mean()
    loss.backward()
    optimizer.step()


class Trainer:
    """Holds its model and optimizer as attributes."""

    def __init__(self):
        self.model = Language()
        self.parts = {"optimizers": [torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)]}

    def fit(self):
        step(self.model, self.parts["optimizers"][0], torch.randint(0, 1000, (2, 16)))
        report([self.model], self.parts["optimizers"])
        sys.stdin.readline()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens = torch.randint(0, 1000, (2, 16))
    if CASE == "adam":
        model = Language()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer, tokens)
        report([model], [optimizer])
    elif CASE == "frozen":
        model = Language()
        model.transformer.h[0].requires_grad_(False)
        model.transformer.h[1].requires_grad_(False)
        optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.1)
        step(model, optimizer, tokens)
        report([model], [optimizer])
    elif CASE == "mixed":
        model = Language()
        model.transformer.h.to(torch.bfloat16)
        model.transformer.norm = nn.BatchNorm1d(8).double()
        model.transformer.h[0].mlp[0].half()
        report([model])
    elif CASE == "forward":
        model = Language().eval()
        with torch.inference_mode():
            report([model])
            sys.stdin.readline()
        return
    elif CASE == "lbfgs":
        model = nn.Linear(32, 8)
        optimizer = torch.optim.LBFGS(model.parameters(), history_size=3)

        def closure():
            optimizer.zero_grad()
            loss = (model(torch.ones(4, 32)) - 1).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        report([model], [optimizer])
    elif CASE == "wrapped":
        inner = Language()
        wrapped = torch.nn.DataParallel(inner)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
        step(inner, optimizer, tokens)
        report([wrapped], [optimizer])
    elif CASE == "views":
        # All weights are views of one buffer, and a third of it is unused.
        flat = torch.zeros(3000)
        model = nn.Module()
        model.one = nn.Parameter(flat[:1000].view(10, 100))
        model.other = nn.Parameter(flat[1000:2000].view(100, 10))
        model.transposed = nn.Parameter(model.one.detach().t())
        report([model])
    elif CASE == "orphans":
        # Parameters that only an optimizer has.
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(100, 10)) for _ in range(3)], lr=0.1)
        report([], [optimizer])
    elif CASE == "empty":
        report([])
    elif CASE == "meta":
        with torch.device("meta"):
            model = Language()
        report([])
    elif CASE == "sparse":
        model = nn.Embedding(100, 8, sparse=True)
        model(torch.tensor([1, 2])).sum().backward()
        report([model])
    elif CASE == "distributed":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        model = Language()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer, tokens)
        report([model], [optimizer])
    elif CASE == "cuda":
        model = Language(512).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer, tokens.to("cuda"))
        report_of_device(model, optimizer)
        sys.stdin.readline()
        # What a step keeps until its end.
        kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        report_of_device(model, optimizer)
        sys.stdin.readline()
        del kept
        return
    elif CASE == "trainer":
        Trainer().fit()
        return
    elif CASE == "thread":
        model = Language()
        ended = threading.Event()
        threading.Thread(target=lambda own: ended.wait(), args=(model,), daemon=True).start()
        report([model])
    elif CASE == "training":
        model = Language()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer, tokens)
        report([model], [optimizer])
        stop = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
        while not stop.is_set():
            optimizer.zero_grad()
            step(model, optimizer, tokens)
        return
    else:
        raise SystemExit(f"no such case: {CASE}")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
