"""What sampling does to a thread that launches kernels, on the simulated GPU node: launches a second, and stops within calls of the runtime.

The runtime is a double (docs/src/gpu-simulation.md). It takes a lock in each launch, as the vendor's does; how long that one holds its own,
and what its driver does meanwhile, only hardware can show.
"""

import bisect
import os
import shutil
import tempfile

import node
import profilers
import slowdown
import stops
from figures import median, middle_mean, quantile
from targets import Failed, Target, program, torch_python

# The device is never what is waited for.
SCENARIO = {"kernels": [{"name": "elementwise", "us": 1.0}]}
RATES = (("100 Hz", 100, (), 1.0), ("1,000 Hz, budget off", 1000, slowdown.BUDGET_OFF, None))
# Calls that last longer may have a stop in them, ns.
LONG_NS = 10_000
FEWEST_ROUNDS = 20
# A median of stops may be so many times another.
MOST_P50 = 1.25


class Recorder(profilers.TorchSpy):
    """torchspy, with the node's NVML."""

    def __init__(self, folder, home):
        super().__init__(folder)
        self.variables = node.variables(home)

    def attach(self, pid, duration=None, rate=100, options=(), variables=None):
        return super().attach(pid, duration, rate, options, self.variables)


class Calls:
    """Calls of the runtime that a thread made in some turns, by the node's truth log."""

    def __init__(self, home, tid, turns):
        turns = sorted(turns)
        edges = [edge for turn in turns for edge in turn]
        self.lengths, self.long = [], []
        for start, end, caller, _ in node.records(home, node.CALL):
            if caller == tid and bisect.bisect_right(edges, start) % 2:
                self.lengths.append(end - start)
                if end - start > LONG_NS:
                    self.long.append((start, end))
        if not self.lengths:
            raise Failed("the truth log has no call in the turns")
        self.long.sort()
        self.share = sum(self.lengths) / sum(end - begin for begin, end in turns)

    def hold(self, start, length):
        """Whether a gap that began at a moment was, for the most part, inside of a call."""
        first = bisect.bisect_left(self.long, (start - LONG_NS, 0))
        return any(end - begin > length / 2 for begin, end in self.long[first : first + 4] if begin < start + length + LONG_NS)


class Stops:
    """Stops that the launching thread felt in turns, of all runs on a device."""

    def __init__(self):
        self.all_us, self.inside_us, self.outside_us = [], [], []
        # Shares of the thread's time, and calls in recorded and in bare turns, ns.
        self.shares, self.recorded_ns, self.bare_ns = [], [], []
        # Of each turn and the bare one beside it: how much longer a round of launches takes,
        # percent.
        self.longer = []

    def add(self, said, turns, home, tid):
        """One run; `home` is the node's folder, None for the CPU."""
        recorded, bare = zip(*turns)
        felt = [gap for turn in recorded for gap in stops.within(said["gaps"], turn) if gap[2]]
        self.all_us += [gap[1] / 1e3 for gap in felt]
        for turn in turns:
            with_it, without = (undisturbed_ns(said["rounds"], each) for each in turn)
            if with_it and without:
                self.longer.append(100 * (with_it / without - 1))
        if home is None:
            return
        calls, without = Calls(home, tid, recorded), Calls(home, tid, bare)
        for start, length, *_ in felt:
            (self.inside_us if calls.hold(start, length) else self.outside_us).append(length / 1e3)
        self.shares.append(without.share)
        self.recorded_ns += calls.lengths
        self.bare_ns += without.lengths


def undisturbed_ns(rounds, turn):
    """The mean length of a turn's rounds in which no other program took the CPU; None where they are too few."""
    lengths = [length for _, length, _, involuntary in stops.within(rounds, turn) if not involuntary]
    return sum(lengths) / len(lengths) if len(lengths) >= FEWEST_ROUNDS else None


def at_work(folder, python, device):
    """(the launching program on a device, the node's folder or None, torchspy for it). In memory: the log is long."""
    words = [python, program("gpu_launches.py"), device]
    if device == "cpu":
        return Target(words), None, profilers.TorchSpy(folder)
    home = tempfile.mkdtemp(prefix="torchspy-node-", dir="/dev/shm" if os.path.isdir("/dev/shm") else folder)
    return Target(node.command(home, SCENARIO, words)), home, Recorder(folder, home)


def launches(table, folder, python, quick):
    """Launches a second in turns with and without torchspy, while one process launches."""
    target, home, tool = at_work(folder, python, "cuda")
    try:
        with target:
            variants = [(name, tool, rate, options) for name, rate, options, _ in RATES] + [(slowdown.BARE_AGAIN, None, None, None)]
            ratios, rounds = slowdown.pairs(target, variants, *((1, 2) if quick else (8,)))
    finally:
        shutil.rmtree(home)
    table.stated("bare: launches a second", f"{1000 / median(rounds):.0f}")
    for name, _, _, limit in [*RATES, (slowdown.BARE_AGAIN, None, None, None)]:
        fewer, error = middle_mean([100 * (1 - 1 / ratio) for ratio in ratios[name]])
        uncertain = f" +-{error:.2f}" if len(ratios[name]) > 1 else ""
        if limit:
            table.at_most(f"launches a second, {name}: fewer by", fewer, limit, "{:.2f} %", uncertain)
        else:
            table.stated(f"    {name}", f"{fewer:+.2f} %{uncertain}")


def held(table, folder, python, quick):
    """Stops of the launching thread, beside those of one that does the same on the CPU in a process without CUDA."""
    found = {"cuda": Stops(), "cpu": Stops()}
    for number in range(1 if quick else 5):
        for device in list(found)[:: 1 if number % 2 == 0 else -1]:
            target, home, tool = at_work(folder, python, device)
            try:
                with target:
                    target.go()
                    turns, _ = stops.in_turns(tool, target.pid, 1 if quick else 6)
                    target.go()
                    found[device].add(target.read_json(), turns, home, target.pid)
            finally:
                if home:
                    shutil.rmtree(home)
    cuda, cpu = found["cuda"], found["cpu"]
    if not (cuda.inside_us and cuda.outside_us and cpu.all_us):
        raise Failed("too few stops were felt")

    for name, longer in (("launching", cuda.longer), ("on the CPU", cpu.longer)):
        mean, error = middle_mean(longer)
        table.stated(f"a round that others do not disturb, {name}: longer by", f"{mean:.2f} % +-{error:.2f} ({len(longer)} turns)")
    for name, lengths in (("on the CPU", cpu.all_us), ("launching", cuda.all_us), ("launching, inside of calls", cuda.inside_us)):
        p50, p99 = quantile(lengths, 0.5), quantile(lengths, 0.99)
        table.stated(f"stop {name}: p50 / p99 / max of {len(lengths)}", f"{p50:.0f} / {p99:.0f} / {max(lengths):.0f} us")
    for name, own, other in (
        ("launching / on the CPU", cuda.all_us, cpu.all_us),
        ("launching: inside / outside of calls", cuda.inside_us, cuda.outside_us),
    ):
        table.at_most(f"stop, {name}: p50", quantile(own, 0.5) / quantile(other, 0.5), MOST_P50)
        table.stated("    p99", f"{quantile(own, 0.99) / quantile(other, 0.99):.2f}")
    share = len(cuda.inside_us) / len(cuda.all_us)
    table.stated("stops inside of calls / share of time in calls", f"{100 * share:.1f} / {100 * median(cuda.shares):.1f} %")
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        recorded, bare = quantile(cuda.recorded_ns, share) / 1e3, quantile(cuda.bare_ns, share) / 1e3
        table.stated(f"call of the runtime, {name}: recorded / bare", f"{recorded:.2f} / {bare:.2f} us ({recorded / bare:.3f})")
    table.stated("    longest", f"{max(cuda.recorded_ns) / 1e3:.0f} / {max(cuda.bare_ns) / 1e3:.0f} us")


def measure(table, folder, quick):
    """Issue 18, stops."""
    table.heading("CUDA loaded: launches a second, and stops in a thread that launches (simulated GPU node)")
    python = torch_python()
    lacking = "no torch environment" if python is None else node.missing()
    if lacking:
        table.skip("launches", lacking)
        return
    launches(table, folder, python, quick)
    held(table, folder, python, quick)
