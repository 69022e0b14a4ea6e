"""One thread that launches small kernels on and on, and feels its own stops.

usage: gpu_launches.py cuda|cpu. Prints "ready PID"; a line on stdin starts, and the next one ends and prints a line of JSON:
`ends` with the end of each round of LAUNCHES launches and one synchronize (CLOCK_MONOTONIC, s), `rounds` [[start_ns, length_ns, 0, involuntary switches], ...], and, as
probe.py does, window_ns and gaps [[start_ns, length_ns, voluntary switches, involuntary switches], ...]: times between two launches that
are longer than usual, less what is usual.
"""

import json
import os
import resource
import select
import statistics
import sys
import time

import torch

LAUNCHES = 1000
# A gap is longer than usual by this, ns.
THRESHOLD_NS = 10_000


def switches():
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw, usage.ru_nivcsw


def main():
    device = sys.argv[1]
    torch.set_num_threads(1)
    tensors = [torch.zeros(1, device=device) for _ in range(4)]
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.monotonic_ns
    gaps, ends, rounds = [], [], []

    def launches(usual_ns, before):
        """A round, and the thread's switches after it."""
        begin = last = clock()
        at_begin = before[1]
        for _ in range(LAUNCHES // len(tensors)):
            for tensor in tensors:
                tensor.add_(1)
                now = clock()
                if now - last > usual_ns + THRESHOLD_NS:
                    after = switches()
                    gaps.append((last, now - last - usual_ns, after[0] - before[0], after[1] - before[1]))
                    before, now = after, clock()
                last = now
        synchronize()
        end, after = clock(), switches()
        ends.append(end / 1e9)
        rounds.append((begin, end - begin, 0, after[1] - at_begin))
        return after

    for _ in range(20):
        launches(1 << 62, (0, 0))
    usual_ns = int(statistics.median(later - earlier for earlier, later in zip(ends, ends[1:])) * 1e9 / LAUNCHES)
    print("ready", os.getpid(), flush=True)
    while sys.stdin.readline():
        ends.clear()
        gaps.clear()
        rounds.clear()
        begin, before = clock(), switches()
        while not select.select([sys.stdin], [], [], 0)[0]:
            before = launches(usual_ns, before)
        sys.stdin.readline()
        print(json.dumps({"ends": ends, "rounds": rounds, "window_ns": [begin, clock()], "gaps": gaps, "lost": 0}), flush=True)


if __name__ == "__main__":
    main()
