"""A few training steps under torch.profiler: its trace, and its own sums of the same events.

usage: profiled.py TRACE SUMS
"""

import json
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = 3


def main(trace, sums):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 6 * 6, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    lstm = torch.nn.LSTM(4, 5)
    batches = [torch.randn(n, 3, 8, 8) for n in (4, 2)]
    steps = schedule(wait=1, warmup=1, active=STEPS)
    stepped = []
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
        for _ in range(2 + STEPS):
            for batch in batches:
                with record_function("my block"):
                    out = model(batch)
                    recurrent, _ = lstm(out.view(len(batch), 1, 4))
                (out.sum() + recurrent.sum()).backward()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.nn.functional.linear(batches[0].view(4, -1), torch.ones(7, 192)).sum().item()
            optimizer.step()
            optimizer.zero_grad()
            before = time.time_ns()
            profiler.step()
            stepped.append([before, time.time_ns()])
    profiler.export_chrome_trace(trace)
    rows = [
        {
            "name": event.key,
            "shapes": event.input_shapes,
            "calls": event.count,
            "self_us": event.self_cpu_time_total,
            "total_us": event.cpu_time_total,
        }
        for event in profiler.key_averages(group_by_input_shape=True)
    ]
    with open(sums, "w") as file:
        # The window begins at the end of the warm-up.
        json.dump({"rows": rows, "began": stepped[1]}, file)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
