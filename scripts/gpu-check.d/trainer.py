"""A trainer on a GPU, bound by what it is told to be bound by.

usage: trainer.py MODE SECONDS [--profile]

Modes: idle, half, saturated (how busy the device is); slow_input, item, tiny and their mended forms slow_input_mended,
item_mended, tiny_mended. Prints "ready PID" before its first step and, at its end, one line of JSON: steps, seconds, and with
--profile the share of time in which torch.profiler saw at least one kernel.
"""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

WIDTHS = {"tiny": 64, "tiny_mended": 64, "saturated": 8192}


class Slow(Dataset):
    """Each item takes 20 ms of a CPU to make."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        return torch.zeros(1024)


class Model(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        width = WIDTHS.get(mode, 4096)
        layers = 200 if mode.startswith("tiny") else 4
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.width = width

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def kernels_union_us(profile):
    """Time in which at least one kernel ran."""
    spans = []
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spans.append((event.time_range.start, event.time_range.end))
    total, until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


class Trainer:
    def __init__(self, mode):
        self.mode = mode
        self.model = Model(mode).cuda()
        batch = 4096 if mode == "saturated" else 256
        self.x = torch.randn(batch, self.model.width, device="cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.loader = None
        if mode.startswith("slow_input"):
            workers = 8 if mode.endswith("mended") else 1
            self.loader = iter(DataLoader(Slow(), batch_size=8, num_workers=workers))
        self.graph = None

    def compute(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self):
        if self.loader is not None:
            next(self.loader)
        started = time.perf_counter()
        if self.mode == "tiny_mended":
            self.replay()
            return
        loss = self.compute()
        if self.mode == "item":
            for _ in range(20):
                loss.item()
                loss = self.compute()
        elif self.mode == "item_mended":
            for _ in range(20):
                loss = self.compute()
        elif self.mode == "idle":
            time.sleep(0.5)
        elif self.mode == "half":
            torch.cuda.synchronize()
            time.sleep(time.perf_counter() - started)

    def replay(self):
        """The step as one graph of kernels."""
        if self.graph is None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.compute()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph):
                loss = self.model(self.x).square().mean()
                loss.backward()
                self.optimizer.step()
        self.graph.replay()


def main():
    mode, seconds = sys.argv[1], float(sys.argv[2])
    trainer = Trainer(mode)
    for _ in range(5):
        trainer.step()
    torch.cuda.synchronize()
    profile = None
    if "--profile" in sys.argv:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        profile = torch.profiler.profile(activities=activities)
        profile.start()
    print("ready", os.getpid(), flush=True)
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        trainer.step()
        steps += 1
        # The host runs ahead by a few steps, as it does in training, and not by thousands.
        if steps % 10 == 0:
            torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    result = {"steps": steps, "seconds": elapsed}
    if profile is not None:
        profile.stop()
        result["busy"] = kernels_union_us(profile) / 1e6 / elapsed
    print(json.dumps(result), flush=True)


main()
