"""Engines: torchspy that stops threads (ptrace) and torchspy that has the kernel sample them (perf), in turns, with peers beside them."""

import os
import shutil
import tempfile

import calls
import profilers
import slowdown
import stops
from figures import median, median_upper_bound, middle_mean
from targets import Failed, Target, torch_python

ENGINES = ("ptrace", "perf")
SLEEPERS = 60
# Of the engine that stops nothing; percent of a step.
MOST_SLOWDOWN, MOST_SLOWDOWN_BOUND = 0.3, 0.6


class PerfRecord:
    """perf's own recorder, with copies of the stack as torchspy takes them."""

    name = "perf record"

    def __init__(self, folder):
        self.folder = folder

    def attach(self, pid, duration=None, rate=100):
        """Samples a running process."""
        output = tempfile.mktemp(suffix=".perf", dir=self.folder)
        command = ["perf", "record", "-q", "-e", "task-clock", "-F", str(rate), "--call-graph", "dwarf,16384", "-p", str(pid), "-o", output]
        return profilers.Run([*command, "--", "sleep", f"{duration:g}"], self.folder)

    @staticmethod
    def lost(_run):
        """It does not say."""
        return None


def gaps(table, folder, quick):
    """How long the probe stands still for a sample, less what it does without."""
    seconds, rounds = (3, 1) if quick else (10, 5)
    mine = [profilers.TorchSpy(folder, engine) for engine in ENGINES]
    peers = [PerfRecord(folder)] if shutil.which("perf") else []
    pyspy = profilers.pyspy_path()
    if pyspy:
        peers.append(profilers.PySpy(folder, pyspy, native=True))
    more_us = {tool.name: [] for tool in (*mine, *peers)}
    rates = {tool.name: [] for tool in mine}
    bare = []
    for number in range(rounds):
        bare.append(stops.spin_once(None, SLEEPERS, seconds))
        for tool in mine if number % 2 == 0 else reversed(mine):
            felt = stops.spin_in_turns(tool, SLEEPERS, seconds)
            more_us[tool.name] += felt.more_us
            rates[tool.name].append(felt.fresh_captures / felt.ticks)
        for tool in peers:
            felt = stops.spin_peer(tool, SLEEPERS, seconds)
            idle = median([run.all_us / run.seconds for run in bare])
            more_us[tool.name].append(felt.all_us / felt.seconds - idle)
    found = {}
    for name, values in more_us.items():
        found[name], error = middle_mean(values) if len(values) > 3 else (median(values), 0)
        table.stated(f"gaps of the probe, {name}", f"{found[name] / 100:.1f} us a tick (uncertain by {error / 100:.1f})")
    for name, values in rates.items():
        table.stated(f"    captures a tick of {SLEEPERS + 2} threads, {name}", f"{median(values):.2f}")
    table.stated("gaps, perf engine / ptrace engine", f"{found[mine[1].name] / found[mine[0].name]:.2f}")


def slows(table, folder, quick):
    """A step's time beside 160 threads."""
    python = torch_python()
    if python is None:
        table.skip("slowdown by engine", "no torch environment")
        return
    variants = [(f"--engine {engine}", profilers.TorchSpy(folder, engine), 100, ()) for engine in ENGINES]
    variants.append((slowdown.BARE_AGAIN, None, None, None))
    count, turns = (2, 4) if quick else (20, slowdown.TURNS // 2)
    with Target.python("many_threads.py", "--steps", 10, "--omp", 1, python=python) as target:
        slowdown.work(target)
        ratios, _ = slowdown.pairs(target, variants, count, turns)
    for name, *_ in variants:
        middle, bound = (100 * (value - 1) for value in (median(ratios[name]), median_upper_bound(ratios[name])))
        if name == "--engine perf":
            table.at_most(f"slowdown, {name}: median of {count}", middle, MOST_SLOWDOWN, "{:.2f} %")
            table.at_most("    95 % upper bound", bound, MOST_SLOWDOWN_BOUND, "{:.2f} %")
        else:
            table.stated(f"slowdown, {name}: median of {count}; 95 % upper bound", f"{middle:.2f} %; {bound:.2f} %")
        quality = slowdown.last_quality.get(name)
        if quality:
            captures = quality["captures"]
            table.stated(
                f"    {name}: torchspy itself; merged; stopped, by the kernel",
                f"{100 * quality['own_cpu']:.2f} % of a core; {100 * quality['merged_share']:.1f} %; {captures['stopped']}, {captures['sampled']}",
            )


def ends_no_call(table, folder, quick):
    """System calls that end early: none may."""
    tool = profilers.TorchSpy(folder, "perf")
    made, seconds = (500, 2) if quick else (calls.CALLS, 120)
    for kind in calls.KINDS:
        bare = calls.calls_once(None, kind, made // 10, seconds, 100)
        count, eintr, short, _ = calls.calls_once(tool, kind, made, seconds, 100)
        table.at_most(f"{kind}, --engine perf: EINTR and short", eintr + short, 0, "{:.0f}", f" of {count}; bare {bare[1] + bare[2]}")


def measure(table, folder, quick):
    """All of them, where perf events may be opened."""
    table.heading("Engines: threads are stopped (ptrace), or sampled by the kernel (perf)")
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("engines", missing)
        return
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        paranoid = int(file.read())
    if os.geteuid() != 0 and paranoid > 1:
        table.skip("--engine perf", f"kernel.perf_event_paranoid is {paranoid}")
        return
    try:
        gaps(table, folder, quick)
    except Failed as error:
        table.skip("gaps by engine", str(error))
    slows(table, folder, quick)
    ends_no_call(table, folder, quick)
