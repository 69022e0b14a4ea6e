"""A torch trainer among about 160 threads: a fixed amount of work, timed by itself.

Threads: --sleepers that sleep for good, --light that wake 20 times a second, two that hand batches through a queue,
torch's own, and with --churn short-lived ones all the time. Prints "ready PID"; for each line on stdin it does --steps
training steps and prints a line of JSON: wall_s, cpu_s, loss; ends at "end" or at the end of stdin. "for SECONDS" on
stdin works for that long instead of a number of steps, "log" until the next line, and prints when each step ended
(CLOCK_MONOTONIC, s).
"""

import argparse
import json
import os
import queue
import select
import sys
import threading
import time

import torch
from torch import nn


def light_work(stop):
    while not stop.wait(0.05):
        sum(range(200))


def feed(batches, count, generator):
    while True:
        batches.put((torch.randn(count, 3, 32, 32, generator=generator), torch.randint(0, 10, (count,), generator=generator)))


def churn(stop, per_second):
    while not stop.wait(1 / per_second):
        threading.Thread(target=lambda: sum(range(5000))).start()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleepers", type=int, default=140)
    parser.add_argument("--light", type=int, default=12)
    parser.add_argument("--omp", type=int, default=2, help="intra-op threads")
    parser.add_argument("--steps", type=int, default=540, help="per line on stdin; 540 take about 12 s on two cores of 2.5 GHz")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--churn", type=float, default=0, help="short-lived threads per second")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.omp)
    stop = threading.Event()
    for number in range(arguments.sleepers):
        threading.Thread(target=threading.Event().wait, daemon=True, name=f"sleeper-{number}").start()
    for number in range(arguments.light):
        threading.Thread(target=light_work, args=(stop,), daemon=True, name=f"light-{number}").start()
    batches = queue.Queue(maxsize=4)
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        threading.Thread(target=feed, args=(batches, arguments.batch, generator), daemon=True, name=f"feed-{number}").start()
    if arguments.churn > 0:
        threading.Thread(target=churn, args=(stop, arguments.churn), daemon=True, name="churn").start()
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        images, labels = batches.get()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(10):
        step()
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["end"]:
            break
        if words[:1] == ["log"]:
            ends = []
            while not select.select([sys.stdin], [], [], 0)[0]:
                step()
                ends.append(time.monotonic())
            sys.stdin.readline()
            print(json.dumps({"ends": ends}), flush=True)
            continue
        wall, cpu, steps = time.monotonic(), time.process_time(), 0
        until = wall + float(words[1]) if words[:1] == ["for"] else None
        while time.monotonic() < until if until else steps < arguments.steps:
            loss = step()
            steps += 1
        result = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu, "steps": steps, "loss": loss.item()}
        print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
