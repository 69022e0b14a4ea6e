"""Trainings that are bound by something that was planted, for the simulated node (scripts/gpu-sim).

usage: gpu_causes.py --model cnn|gpt|mlp --cause NAME [--cause NAME] --strength 0..1 --seconds S [--mended S] [--fill-ms MS]
With torch.distributed.run before it, its ranks train with DistributedDataParallel over NCCL, and rank 1 is the straggler: its storage
answers late.

Without a cause a step keeps the device busy for 100 ms, and the host for much less: the device is what it waits for. Causes that lie in
the device (its rates, clocks that are held down) are in the node's scenario, by scripts/accuracy.d/gpu.py; here they are names alone.
On a GPU, products besides the model's own keep it busy: --fill-ms of them in each step.
Strength 0 is a cause that is taken away. Prints "ready" with its pid, or with that of what launched the ranks, after some steps, trains
for S seconds, and then, for each cause, for the seconds of --mended without that cause. A line of JSON at the end: `steps`, `seconds`,
`step_ns` with the end of each step in ns of CLOCK_MONOTONIC, and `mended` with `steps` and `seconds` by cause.
"""

import argparse
import contextlib
import json
import os
import socket
import threading
import time
import zlib

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from gpu_train import CNN, GPT, mlp

DEVICE = "cuda"
RANK = int(os.environ.get("RANK", 0))

# Where a cause needs it: what the host does in each step while the device computes, unless the cause keeps it from that. It sends metrics to
# a server and waits for the answer, ms: computing would make it depend on what else the machine does.
NOTES_MS = 60
# At strength 1: the host's own work for each batch, ms.
PYTHON_MS, BATCH_MS = 300, 400
PIECES = 8
# Of a batch that is copied, beside what the model takes.
EXTRA_BYTES = 100 << 20
WARM_UP_STEPS = 4
# Steps that a rank's host may be ahead of another's.
AHEAD = 12
CAUSES = (
    "none", "workers", "storage", "transform", "launch", "python", "sync", "copy", "gpu", "dram", "throttled", "communication", "straggler",
)  # fmt: skip
INPUT = ("workers", "storage", "transform")
# By a DataLoader.
LOADED = (*INPUT, "straggler")
# They lie in the node, and cannot be taken away while it is in use.
OF_NODE = ("gpu", "dram", "throttled")


def count_tokens(rounds):
    """Statistics of a batch, as a script's own Python makes them."""
    counts = {}
    for number in range(rounds):
        token = number * 31 % 4093
        counts[token] = counts.get(token, 0) + 1
    return counts


def rounds_per_ms(work, rounds):
    """How many rounds of some work take a millisecond: the quickest of several, so that what else runs does not count."""
    quickest = float("inf")
    for _ in range(7):
        begin = time.thread_time()
        work(rounds)
        quickest = min(quickest, time.thread_time() - begin)
    return rounds / quickest / 1e3


PACKED = zlib.compress(bytes(range(256)) * 64, 1)


def decode(rounds):
    """As much work as an image's decoder has."""
    for _ in range(rounds):
        zlib.decompress(PACKED)


def elastic(rounds):
    """An augmentation that someone wrote in Python."""
    moved = [0.0] * 64
    for number in range(rounds):
        moved[number % 64] = moved[number % 64] * 0.5 + number % 7
    return moved


class Server:
    """A server that answers late, in a process of its own: of files, as storage over a network is, or of metrics."""

    BYTES = 8 << 10

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        read, self.alive = os.pipe()
        child = os.fork()
        if child == 0:
            # Not a child of the training: that one would be part of it.
            if os.fork() == 0:
                os.setsid()
                os.close(self.alive)
                threading.Thread(target=self.serve, daemon=True).start()
                os.read(read, 1)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(read)

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        while asked := connection.recv(64):
            time.sleep(float(asked))
            connection.sendall(bytes(self.BYTES))

    def ask(self, delay_s):
        """Its answer."""
        if not hasattr(self, "connection"):
            self.connection = socket.create_connection(self.address)
        self.connection.sendall(b"%.6f" % delay_s)
        left = self.BYTES
        while left:
            left -= len(self.connection.recv(left))


class Samples(Dataset):
    """Samples of a batch, with what is planted into how they are made. All strengths are shared with workers."""

    def __init__(self, script, planted):
        self.script, self.planted = script, planted
        self.storage = Server() if planted.has("storage") or planted.has("straggler") else None
        self.rounds = [rounds_per_ms(decode, 20), rounds_per_ms(elastic, 10000)]

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        each_ms = BATCH_MS / self.script.batch
        workers, storage, transform = (self.planted.of(cause) for cause in INPUT)
        storage = max(storage, self.planted.of("straggler") if RANK == 1 else 0.0)
        if storage:
            self.storage.ask(storage * each_ms / 1e3)
        if workers:
            decode(int(workers * each_ms / 2 * self.rounds[0]))
            elastic(int(workers * each_ms / 2 * self.rounds[1]))
        sample, target = self.script.sample(index)
        if transform:
            elastic(int(transform * each_ms * self.rounds[1]))
        return sample, target


class Planted:
    """The strength of each cause, which other processes see change."""

    def __init__(self, causes, strength):
        self.causes, self.strength = [cause for cause in causes if cause != "none"], strength
        self.strengths = torch.zeros(len(CAUSES)).share_memory_()
        for cause in self.causes:
            self.strengths[CAUSES.index(cause)] = strength
        # Small kernels leave the host no time to spare.
        self.metrics = Server() if {"sync", "copy"} & set(self.causes) and not self.has("launch") else None

    def has(self, cause):
        return cause in self.causes

    def of(self, cause):
        return self.strengths[CAUSES.index(cause)].item()

    def set(self, cause, strength):
        self.strengths[CAUSES.index(cause)] = strength


class ImageScript:
    """A CNN on images."""

    batch = 8

    def __init__(self):
        self.model = CNN(depth=3).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.images = torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8)

    def sample(self, index):
        return self.images[index % 64].float().div(255).sub(0.5), index % 10

    def loss(self, images, labels):
        return F.cross_entropy(self.model(images), labels)


class TextScript:
    """A GPT on text."""

    batch = 8

    def __init__(self):
        self.model = GPT().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.text = torch.randint(4096, (1 << 20,))

    def sample(self, index):
        start = index * 7919 % (len(self.text) - 257)
        return self.text[start : start + 256], self.text[start + 1 : start + 257]

    def loss(self, tokens, targets):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.model(tokens, targets)


class TableScript:
    """An MLP with many layers on rows of a table."""

    batch = 256

    def __init__(self):
        self.model = mlp(512, 32, 10).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.rows = torch.randn(4096, 512)

    def sample(self, index):
        return self.rows[index % 4096], index % 10

    def loss(self, rows, labels):
        return F.cross_entropy(self.model(rows), labels)


SCRIPTS = {"cnn": ImageScript, "gpt": TextScript, "mlp": TableScript}


def batches(script, planted):
    """Batches in the host's memory, without end: those of the CNN and those with a planted input by a DataLoader."""
    if not (isinstance(script, ImageScript) or any(planted.has(cause) for cause in LOADED)):
        while True:
            rows = torch.randint(1 << 20, (script.batch,)).tolist()
            samples, targets = zip(*(script.sample(row) for row in rows))
            yield torch.stack(samples).pin_memory(), torch.utils.data.default_collate(targets).pin_memory()
    # In the main process, where it is the planted cause that there are none.
    workers = 0 if planted.has("workers") else 1
    yield from DataLoader(Samples(script, planted), batch_size=script.batch, num_workers=workers, pin_memory=True)


class Fill:
    """Products that keep a device busy for a while: as many as take so long on this one."""

    SIDE, TRIED = 2048, 10

    def __init__(self, ms):
        self.count = 0
        if not ms:
            return
        self.square = torch.zeros(self.SIDE, self.SIDE, device=DEVICE)
        self.out = torch.zeros_like(self.square)
        for self.count in (1, self.TRIED):
            torch.cuda.synchronize()
            begin = time.monotonic()
            self.queue()
            torch.cuda.synchronize()
            each_ms = (time.monotonic() - begin) * 1e3 / self.count
        self.count = max(round(ms / each_ms), 1)

    def queue(self):
        for _ in range(self.count):
            torch.mm(self.square, self.square, out=self.out)


class Clock:
    """Ends of steps."""

    def __init__(self):
        self.step_ns = []
        self.parts = 0

    def start(self, seconds):
        torch.cuda.synchronize()
        self.step_ns = [time.monotonic_ns()]
        self.until_ns = self.step_ns[0] + int(seconds * 1e9)
        self.parts += 1
        self.last = None

    def step(self):
        """Whether there is to be another one. Ranks have to agree: the first says in time which is the last, in a file."""
        self.step_ns.append(time.monotonic_ns())
        steps = len(self.step_ns)
        if not dist.is_initialized():
            return self.step_ns[-1] < self.until_ns
        path = os.path.join(os.environ["TORCHSPY_GPU_SIM"], f"last-{self.parts}")
        if RANK == 0 and self.last is None and self.step_ns[-1] >= self.until_ns:
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(str(steps + AHEAD))
            os.rename(path + ".new", path)
        if self.last is None and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.last = int(file.read())
        return self.last is None or steps < self.last

    def rate(self):
        """Steps, and how long they took: with what the device had yet to do, since the host may be some steps ahead."""
        torch.cuda.synchronize()
        return {"steps": len(self.step_ns) - 1, "seconds": (time.monotonic_ns() - self.step_ns[0]) / 1e9}


def train(script, planted, loader, fill, more):
    """Steps, until `more` says that there are enough."""
    model, optimizer = script.model, script.optimizer
    if planted.has("copy"):
        extra = torch.zeros(int(planted.strength * EXTRA_BYTES) // 4)
        pinned = extra.pin_memory()
    tokens_per_ms = rounds_per_ms(count_tokens, 10000)
    running, asked = 0.0, 0.0
    wrapper = script.model if dist.is_initialized() else None
    for inputs, targets in loader:
        inputs, targets = inputs.to(DEVICE, non_blocking=True), targets.to(DEVICE, non_blocking=True)
        if planted.has("copy"):
            if planted.of("copy"):
                features = extra.to(DEVICE)
            else:
                features = pinned.to(DEVICE, non_blocking=True)
            features.sum()
        if planted.metrics:
            planted.metrics.ask(NOTES_MS / 1e3)
        if planted.of("python"):
            count_tokens(int(planted.of("python") * PYTHON_MS * tokens_per_ms))
        pieces = max(round(planted.of("launch") * PIECES), 1)
        # Ranks that tell each other nothing.
        alone = wrapper and planted.has("communication") and not planted.of("communication")
        with wrapper.no_sync() if alone else contextlib.nullcontext():
            for part, target in zip(inputs.tensor_split(pieces), targets.tensor_split(pieces)):
                loss = script.loss(part, target)
                (loss / pieces).backward()
        fill.queue()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        asked += planted.of("sync")
        if asked >= 1:
            asked -= 1
            running += loss.item()
        if not more():
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SCRIPTS, required=True)
    parser.add_argument("--cause", choices=CAUSES, action="append", default=[])
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--mended", type=float, default=0.0)
    parser.add_argument("--fill-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    planted = Planted(arguments.cause, arguments.strength)
    if "RANK" in os.environ:
        torch.cuda.set_device(RANK)
        dist.init_process_group("nccl")
    script = SCRIPTS[arguments.model]()
    if dist.is_initialized():
        script.model = DistributedDataParallel(script.model, device_ids=[RANK])
    loader, fill = batches(script, planted), Fill(arguments.fill_ms)
    clock, steps = Clock(), iter(range(WARM_UP_STEPS))
    train(script, planted, loader, fill, lambda: next(steps, None) is not None)
    if RANK == 0:
        print("ready", os.getppid() if dist.is_initialized() else os.getpid(), flush=True)
    clock.start(arguments.seconds)
    train(script, planted, loader, fill, clock.step)
    found = {**clock.rate(), "step_ns": clock.step_ns, "mended": {}}
    for cause in [cause for cause in planted.causes if cause not in OF_NODE] if arguments.mended else ():
        planted.set(cause, 0.0)
        # Batches that were made before.
        steps = iter(range(WARM_UP_STEPS))
        train(script, planted, loader, fill, lambda: next(steps, None) is not None)
        clock.start(arguments.mended)
        train(script, planted, loader, fill, clock.step)
        found["mended"][cause] = clock.rate()
        planted.set(cause, arguments.strength)
    torch.cuda.synchronize()
    if RANK == 0:
        print(json.dumps(found), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
