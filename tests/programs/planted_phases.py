"""Knows its own phases: a small real training run that times every one of them with the monotonic clock.

Prints "ready PID" after its first step, trains until a line or the end of stdin comes, then writes JSON to --log:
{"switches": [[moment_ns, name, queued_ns], ...], "steps": n, "tid": its own thread}. From a switch on the thread does what the
name says: `input`, `forward`, `backward`, `optimizer`, `checkpoint` (torch's own), `sleep`, `lock`, `gil` (planted waits), and
`user` for all between. queued_ns is how long the thread had waited for a CPU until then (schedstat(5), second field): such
time is no sleep and no wait for a lock, but lies within them.

Every step has input, forward, backward and optimizer. Checkpoints, waits and Python code of random length stand between, in random
order: no two steps are alike, and none is a multiple of a tick.
"""

import argparse
import ctypes
import json
import os
import random
import select
import sys
import tempfile
import threading
import time

import compiled
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

now = time.monotonic_ns


class Rows(Dataset):
    """Rows that cost Python and numpy time to make."""

    def __init__(self, features, cost):
        self.features, self.cost = features, cost

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        total = 0
        for number in range(self.cost):
            total += (number ^ index) & 7
        return torch.full((self.features,), total % 11 / 11.0), index % 10


class Net(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.conv = nn.Conv1d(1, 24, 9, padding=4)
        self.body = nn.Sequential(nn.Linear(24 * features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, rows):
        return self.head(self.body(torch.relu(self.conv(rows.unsqueeze(1))).flatten(1)))


class Log:
    """The switches of the thread that makes it."""

    def __init__(self):
        self.tid = threading.get_native_id()
        self.file = os.open(f"/proc/self/task/{self.tid}/schedstat", os.O_RDONLY)
        self.switches = []

    def queued_ns(self):
        """How long the thread has waited for a CPU."""
        return int(os.pread(self.file, 80, 0).split()[1])

    def at(self, name):
        """From now on the thread does this."""
        queued = self.queued_ns()
        self.switches.append((now(), name, queued))


class Contender:
    """A thread that holds the GIL, or a lock, when it is told to."""

    def __init__(self):
        path = compiled.library("planted_phases.c")
        self.hold = ctypes.PyDLL(path).planted_hold
        without = ctypes.CDLL(path)
        self.park, self.until_parked = without.planted_park, without.planted_await
        self.hold.argtypes, self.hold.restype = [ctypes.c_uint64], None
        self.park.argtypes, self.park.restype = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)], ctypes.c_uint64
        self.wanted, self.lock = threading.Semaphore(0), threading.Lock()
        self.lock.acquire()
        self.work = None
        threading.Thread(target=self.run, name="contender", daemon=True).start()

    def run(self):
        while True:
            self.wanted.acquire()
            what, length_ns = self.work
            if what == "gil":
                self.until_parked()
                self.hold(length_ns)
            else:
                time.sleep(length_ns / 1e9)
                self.lock.release()

    def wait_for_gil(self, log, length_ns):
        self.work = ("gil", length_ns)
        queued = ctypes.c_uint64()
        self.wanted.release()
        moment = self.park(log.file, ctypes.byref(queued))
        # The next line runs as soon as the GIL is back.
        back = now()
        log.switches += [(moment, "gil", queued.value), (back, "user", log.queued_ns())]

    def wait_for_lock(self, log, length_ns):
        self.work = ("lock", length_ns)
        log.at("lock")
        self.wanted.release()
        self.lock.acquire()
        log.at("user")


def burn(until):
    total = 0
    while now() < until:
        total += 1
    return total


class Trainer:
    """The run, and its log."""

    def __init__(self, arguments, folder):
        torch.manual_seed(arguments.seed)
        self.draw = random.Random(arguments.seed)
        self.model = Net(arguments.features, arguments.width)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = iter(DataLoader(Rows(arguments.features, arguments.cost), batch_size=arguments.batch))
        self.path = os.path.join(folder, "checkpoint.pt")
        self.contender, self.log = Contender(), Log()

    def length_ns(self):
        return int(self.draw.uniform(4, 36) * 1e6)

    def train_step(self):
        log = self.log
        log.at("input")
        rows, labels = next(self.batches)
        log.at("optimizer")
        self.optimizer.zero_grad()
        log.at("forward")
        loss = self.criterion(self.model(rows), labels)
        log.at("backward")
        loss.backward()
        log.at("optimizer")
        self.optimizer.step()
        log.at("user")

    def checkpoint(self):
        self.log.at("checkpoint")
        torch.save({"model": self.model.state_dict()}, self.path)
        torch.load(self.path)
        self.log.at("user")

    def sleep(self):
        length = self.length_ns() / 1e9
        self.log.at("sleep")
        time.sleep(length)
        self.log.at("user")

    def lock(self):
        self.contender.wait_for_lock(self.log, self.length_ns())

    def gil(self):
        self.contender.wait_for_gil(self.log, self.length_ns())

    def python(self):
        burn(now() + self.length_ns() // 2)

    def step(self):
        others = [self.sleep, self.lock, self.gil, self.python]
        if self.draw.random() < 0.4:
            others.append(self.checkpoint)
        self.draw.shuffle(others)
        cut = self.draw.randrange(len(others) + 1)
        for other in others[:cut]:
            other()
        self.train_step()
        for other in others[cut:]:
            other()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of OpenMP")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--cost", type=int, default=4000, help="of making a row")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    steps = 0
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(arguments, folder)
        trainer.step()
        trainer.log.switches.clear()
        trainer.log.at("user")
        print("ready", os.getpid(), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            trainer.step()
            steps += 1
        trainer.log.at("user")
    log = {"switches": trainer.log.switches, "steps": steps, "tid": trainer.log.tid}
    with open(arguments.log, "w", encoding="utf-8") as file:
        json.dump(log, file)
    print("done", flush=True)


if __name__ == "__main__":
    main()
