"""Device memory of a training on the simulated node (scripts/gpu-sim): a peak, a line that keeps what it allocates, one that does not, and
in the middle an allocation that no device has memory for.

usage: gpu_memory.py SECONDS. The allocation is made at half of the time, or when a line comes on standard input. Prints "ready", and at the end a line of JSON: the statistics of torch's allocator.
"""

import json
import multiprocessing
import os
import sys
import threading
import time

import torch
from torch import nn

KEPT = 64 << 10


def keep(kept, device):
    for _ in range(4):
        kept.append(torch.empty(KEPT, dtype=torch.uint8, device=device)), sum(range(60_000))  # mark: kept


def pass_by(device):
    passing = []
    for _ in range(4):
        passing.append(torch.empty(8 * KEPT, dtype=torch.uint8, device=device)), sum(range(400_000))  # mark: passing


def stay():
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


def main():
    torch.set_num_threads(1)
    device = torch.device("cuda", 0)
    model = nn.Linear(256, 256).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    # The peak, and segments of which only a part stays in use.
    parts = [torch.empty(3 << 20, dtype=torch.uint8, device=device) for _ in range(300)]
    del parts[::2]
    # A copy of the allocator, as a DataLoader's worker has it.
    multiprocessing.get_context("fork").Process(target=stay, daemon=True).start()
    print("ready", flush=True)
    kept, told, asked = [], threading.Event(), False
    threading.Thread(target=lambda: sys.stdin.readline() and told.set(), daemon=True).start()
    begin, seconds = time.monotonic(), float(sys.argv[1])
    while time.monotonic() < begin + seconds:
        if not asked and (told.is_set() or time.monotonic() > begin + seconds / 2):
            asked = True
            try:
                torch.empty(1 << 45, dtype=torch.uint8, device=device)
            except RuntimeError:
                pass
        loss = model(torch.randn(64, 256, device=device)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        keep(kept, device)
        pass_by(device)
    torch.cuda.synchronize()
    statistics = torch.cuda.memory_stats()
    print(json.dumps({name: value for name, value in statistics.items() if not isinstance(value, dict)}), flush=True)


if __name__ == "__main__":
    main()
