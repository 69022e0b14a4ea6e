"""Two ranks over Gloo that train, evaluate, write checkpoints, compile and pause: what looks like a hang and is none.

usage: python -m torch.distributed.run --standalone --nproc-per-node 2 working_day.py
Each of the parts but training lasts for three seconds or longer, and in most the other rank waits for one. Rank 0 prints "ready PID" (of
what started it), then reads lines: "cycle N" runs all parts, from number N on, and prints the seconds of each as JSON; "hang" hangs
rank 1, and prints "hangs". All end with their standard input.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

LONG_S = 3.0


class Rows(Dataset):
    """The first row of a late loader comes late, as from storage that does not answer at once."""

    def __init__(self, is_late):
        self.is_late = is_late

    def __len__(self):
        return 256

    def __getitem__(self, index):
        if self.is_late and index == 0:
            time.sleep(LONG_S)
        return torch.full((8,), float(index % 7)), index % 2


def end_with_parent(_=None):
    """Who hangs does not notice that its parent was killed: the kernel ends it (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Day:
    def __init__(self):
        self.rank = dist.get_rank()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        self.model = nn.parallel.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.widths = iter(range(8, 1 << 16))

    def train(self, is_late=False):
        for inputs, labels in DataLoader(Rows(is_late), batch_size=8, num_workers=2, worker_init_fn=end_with_parent):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), labels).backward()
            self.optimizer.step()

    def late_data(self):
        self.train(is_late=self.rank == 1)

    def evaluate(self):
        if self.rank == 0:
            until = time.monotonic() + LONG_S
            with torch.no_grad():
                while time.monotonic() < until:
                    self.net(torch.ones(4096, 8))

    def checkpoint(self):
        if self.rank == 0:
            until = time.monotonic() + LONG_S
            with tempfile.NamedTemporaryFile() as file:
                while time.monotonic() < until:
                    torch.save({"weights": torch.zeros(16 << 20), "model": self.net.state_dict()}, file)
                    os.fsync(file.fileno())
                    file.seek(0)

    def compile(self):
        # A new graph each time: a cache would answer at once.
        torch.compiler.reset()
        layers = [nn.Linear(next(self.widths), 8) for _ in range(4)]
        work = torch.compile(lambda one: sum(layer(one[:, : layer.in_features]).tanh() for layer in layers))
        work(torch.ones(8, layers[-1].in_features)).sum().backward()

    def pause(self):
        # A job that waits until somebody else is done: for a time, or for a file.
        time.sleep(LONG_S)

    def write_in_the_background(self):
        if self.rank == 0:
            writer = threading.Thread(target=self.checkpoint)
            writer.start()
            writer.join()


def read_line(rank):
    """The next line of rank 0's standard input, for all ranks."""
    lines = [sys.stdin.readline() if rank == 0 else None]
    dist.broadcast_object_list(lines)
    return lines[0].split()


def main():
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    day = Day()
    parts = [day.train, day.evaluate, day.checkpoint, day.late_data, day.pause, day.write_in_the_background, day.compile]

    def say(text):
        if day.rank == 0:
            os.write(1, f"{text}\n".encode())

    day.train()
    say(f"ready {os.getppid()}")
    while words := read_line(day.rank):
        if words[0] == "hang":
            say("hangs")
            if day.rank == 1:
                reader, _ = os.pipe()
                os.read(reader, 1)  # mark: hang
            day.train()
        first, seconds = int(words[1]) % len(parts), {}
        for part in parts[first:] + parts[:first]:
            began = time.monotonic()
            part()
            dist.barrier()
            seconds[part.__name__] = time.monotonic() - began
        say(json.dumps(seconds))


if __name__ == "__main__":
    main()
