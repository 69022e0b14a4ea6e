"""A short training run of one of five kinds, which ends with status 3 after so many seconds of steps. Its last line is JSON: the wall clock
at the ends of its optimizer steps, ns. `fixed` has that number of steps of some 100 ms, and prints a list of their wall and CPU time, s.

usage: windows.py plain|workers|ranks|lightning|once SECONDS
       windows.py fixed STEPS
"""

import json
import os
import sys
import time

import torch
from torch import nn

STATUS = 3
# A step takes some 20 ms.
PAUSE_S = 0.015


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), index % 10


def net():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def batches(kind):
    if kind == "workers":
        yield from torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2)
    inputs, targets = torch.randn(8, 64), torch.randint(0, 10, (8,))
    while True:
        yield inputs, targets


def train(kind, seconds):
    """Returns when each optimizer step ended."""
    model = net()
    if kind == "ranks":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = []
    over = torch.zeros(1)
    end = time.monotonic() + seconds
    for inputs, targets in batches(kind):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ends.append(time.time_ns())
        time.sleep(PAUSE_S)
        over[0] = time.monotonic() >= end
        if kind == "ranks":
            torch.distributed.all_reduce(over)
        if over.item() > 0:
            break
    if kind == "ranks":
        torch.distributed.destroy_process_group()
    return ends


def train_fixed(steps):
    """Wall and CPU time of so many steps, s."""
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 1024)
    for step in range(steps + 1):
        if step == 1:
            wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [time.perf_counter() - wall, time.process_time() - cpu]


def train_lightning(seconds):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.ends = net(), []
            self.end = None

        def training_step(self, batch, _):
            time.sleep(PAUSE_S)
            self.end = self.end or time.monotonic() + seconds
            self.trainer.should_stop = time.monotonic() >= self.end
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

        def on_train_batch_end(self, *_):
            self.ends.append(time.time_ns())

    module = Module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, min_epochs=0, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(Data(), batch_size=8))
    return module.ends


def main():
    torch.set_num_threads(1)
    kind, seconds = sys.argv[1], float(sys.argv[2])
    ends = []
    if kind == "fixed":
        ends = train_fixed(int(seconds))
    elif kind != "once":
        ends = train_lightning(seconds) if kind == "lightning" else train(kind, seconds)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(ends), flush=True)
    sys.exit(STATUS)


main()
