"""Ranks over Gloo, of which one hangs at step 20 while the others wait for it.

usage: python -m torch.distributed.run --standalone --nproc-per-node N hang_ranks.py python|lock|worker|gil
Every rank prints "ready RANK PID" after step 19; the last one hangs. All end after five minutes.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP = 20


class Rows(Dataset):
    def __init__(self, hangs):
        self.hangs = hangs

    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        if self.hangs and index == 4 * (STEP + 3):
            reader, _ = os.pipe()
            os.read(reader, 1)  # mark: worker
        return torch.full((8,), float(index % 7)), index % 2


def end_with_parent(_=None):
    """Who hangs does not notice that its parent was killed: the kernel ends it (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def hold(lock):
    with lock:
        time.sleep(300)  # mark: holder


def hang(how):
    if how == "python":
        while True:
            pass  # mark: python
    if how == "lock":
        lock = threading.Lock()
        threading.Thread(target=hold, args=(lock,), name="holder", daemon=True).start()
        while not lock.locked():
            time.sleep(0.001)
        with lock:  # mark: lock
            pass
    if how == "gil":
        # PyDLL keeps the GIL in the call.
        ctypes.PyDLL(None).sleep(300)  # mark: gil


def main():
    how = sys.argv[1]
    end_with_parent()
    signal.alarm(300)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hangs = rank == dist.get_world_size() - 1
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    workers = 2 if how == "worker" else 0
    loader = DataLoader(Rows(hangs and how == "worker"), batch_size=4, num_workers=workers, worker_init_fn=end_with_parent)
    for step, (inputs, labels) in enumerate(loader):  # mark: loop
        if step == STEP and hangs:
            hang(how)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # mark: backward
        optimizer.step()
        if step == STEP - 1:
            # One write: the ranks share the pipe.
            os.write(1, f"ready {rank} {os.getpid()}\n".encode())


if __name__ == "__main__":
    main()
