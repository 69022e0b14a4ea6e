"""torch.compile on the CPU: inductor's C++ kernels, a graph break, and a second compilation when the batch gets smaller."""

import argparse
import tempfile
import time

import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import switches  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch._inductor.compile_fx  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(256, width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, rows):
        hidden = torch.nn.functional.gelu(self.first(rows))
        torch._dynamo.graph_break()
        return self.head(torch.tanh(self.norm(self.second(hidden))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--log", required=True)
    arguments = parser.parse_args()
    switches.begin()
    switches.training()
    switches.compiling()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        model = switches.module(torch.compile(Net(768)))
        criterion = switches.module(nn.CrossEntropyLoss())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rows = TensorDataset(torch.randn(1000, 256), torch.randint(0, 10, (1000,)))
        begin, steps = None, 0
        # The time counts from the first step on: compiling takes as long as it takes.
        while begin is None or time.monotonic() - begin < arguments.seconds:
            for inputs, labels in DataLoader(rows, batch_size=256):
                optimizer.zero_grad()
                criterion(model(inputs), labels).backward()
                optimizer.step()
                steps += 1
                begin = begin or time.monotonic()
    switches.write(arguments.log)
    print("steps", steps, flush=True)


if __name__ == "__main__":
    main()
