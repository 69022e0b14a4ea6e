"""Trains a layer of ten weights in steps of a tenth of a second, and after that many steps of four tenths and more.

usage: gets_slow.py STEPS
It prints "slow" when it gets slow, and ends when its input does.
"""

import sys
import threading
import time

import torch


def main():
    fast = int(sys.argv[1])
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    torch.set_num_threads(1)
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    while not over.is_set():
        # On a busy machine fast steps vary, too: slow ones get slower until that is seen.
        time.sleep(0.1 if steps < fast else min(0.4 * 1.5 ** ((steps - fast) // 25), 5))
        optimizer.zero_grad()
        model(torch.randn(4, 10)).sum().backward()
        optimizer.step()
        steps += 1
        if steps == fast:
            print("slow", flush=True)


if __name__ == "__main__":
    main()
