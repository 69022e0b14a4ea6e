"""Part windows: `record --trace` on short runs of five kinds, several at a time: their exit status, whether the window's trace came, and by how
much the wall clock at the ends of steps differs from that of the trace, by what the program itself has logged.

Runs last longer than their window: one that ends in it may crash, in torch's profiler. That is the reason for the default policy.

Then what it costs, on steps of 100 ms: CPU time of runs that end before a window may begin, and wall time of runs with a window of 2 s, each
beside the same run recorded without --trace, in turn.
"""

import bisect
import concurrent.futures
import json
import math
import os
import random
import statistics
import subprocess
import tempfile

import profilers
from targets import Failed, program, torch_python

RUNS = 200
# Pairs of runs for each cost.
PAIRS = 10
# Steps until no window may have begun, and for one to be over.
FEW, MANY = 60, 320
AT_ONCE = 4
STATUS = 3
KINDS = ["plain", "workers", "ranks", "lightning", "once"]
# From the first step: 10 s of steps, 6.5 s until the window, up to 10 s more where ranks wait for
# the same moment, and writing it.
SHORTEST_S, LONGEST_S = 36, 46


def framework_python():
    """The Python that has Lightning, or None."""
    script = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "torch-env")
    done = subprocess.run([script, "frameworks"], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


class Run:
    """One program with a window."""

    def __init__(self, kind, seconds, folder, lightning):
        self.kind = kind
        file = os.path.join(tempfile.mkdtemp(dir=folder), "w.tspy")
        python = lightning if kind == "lightning" else torch_python()
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if kind == "ranks" else []
        command = [profilers.torchspy_path(), "record", "--trace", "500ms", "-o", file, "--", python, *launcher]
        command += [program("windows.py"), kind, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.said = done.stderr[-2000:]
        # torchrun has a status of its own.
        self.kept_status = done.returncode == (1 if kind == "ranks" else STATUS)
        self.status = done.returncode
        report = subprocess.run(
            [profilers.torchspy_path(), "report", file, "--json"], capture_output=True, text=True, timeout=300, check=False
        )
        if report.returncode != 0:
            raise Failed(report.stderr)
        answer = json.loads(report.stdout)
        self.traced = answer.get("traced")
        self.why_not = [row["reason"] for row in answer["without_trace"]]
        lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
        self.ends = json.loads(lines[-1]) if lines else []

    def clock_error_us(self):
        """Between the end of the last whole step in the trace and the program's own reading after it; None without a trace."""
        steps = (self.traced or {}).get("steps")
        if not steps or not self.ends:
            return None
        end = steps["last_end_wall_ns"]
        at = bisect.bisect_left(self.ends, end)
        near = self.ends[max(0, at - 1) : at + 1]
        return min((abs(value - end) for value in near), default=None) / 1e3


def measure(table, folder, quick):
    runs = 5 if quick else RUNS
    table.heading(f"{runs} runs with a window of torch.profiler")
    lightning = framework_python()
    kinds = KINDS if lightning else [kind for kind in KINDS if kind != "lightning"]
    if not lightning:
        print("skip: Lightning: its Python cannot be made", flush=True)
    chance = random.Random(0)
    wanted = [(kinds[index % len(kinds)], chance.uniform(SHORTEST_S, LONGEST_S)) for index in range(runs)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda each: Run(each[0], each[1], folder, lightning), wanted))
    for run in done:
        expects = run.kind != "once"
        if not run.kept_status or bool(run.traced) != expects:
            print(f"  {run.kind}: status {run.status}, no trace: {run.why_not}\n{run.said}", flush=True)
    trained = [run for run in done if run.kind != "once"]
    table.at_least("exit status kept, runs", sum(run.kept_status for run in done), runs, "{:.0f}")
    table.at_least("trace came where there were steps, runs", sum(bool(run.traced) for run in trained), len(trained), "{:.0f}")
    table.at_most("trace where there were none, runs", sum(bool(run.traced) for run in done if run.kind == "once"), 0, "{:.0f}")
    # Lightning's own reading comes after callbacks.
    errors = [run.clock_error_us() for run in trained if run.kind != "lightning"]
    errors = [error for error in errors if error is not None]
    if not errors:
        raise Failed("no clock was compared")
    table.at_most("clock: median difference at the end of a step, us", statistics.median(errors), 50)
    table.stated("clock: largest, us", f"{max(errors):.0f} of {len(errors)}")
    cost(table, folder, 1 if quick else PAIRS)


def fixed(folder, steps, *options):
    """Wall and CPU time of so many steps, s, and whether they had a window."""
    file = os.path.join(tempfile.mkdtemp(dir=folder), "w.tspy")
    command = [profilers.torchspy_path(), "record", *options, "-o", file, "--", torch_python(), program("windows.py"), "fixed", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != STATUS:
        raise Failed(done.stderr[-2000:])
    wall, cpu = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu, "has come" in done.stderr


def interval(values):
    """The mean and its 95 % interval (Student)."""
    mean = statistics.fmean(values)
    # Of t with 9 degrees of freedom; with fewer values it is wider than this.
    half = 2.26 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return f"{mean - half:.3f} to {mean + half:.3f}"


def cost(table, folder, pairs):
    registered, windows = [], []
    for turn in range(pairs):
        # Each comes first in every second turn.
        both = [(), ("--trace", "2s")]
        few, many = {}, {}
        for options in both if turn % 2 == 0 else reversed(both):
            few[options], many[options] = fixed(folder, FEW, *options), fixed(folder, MANY, *options)
        bare, traced = both
        if few[traced][2] or not many[traced][2]:
            raise Failed(f"windows in the wrong runs: {few} {many}")
        registered.append((few[traced][1] / few[bare][1] - 1) * 100)
        windows.append(many[traced][0] - many[bare][0])
    table.at_most("registered, without a window: more CPU time, %", statistics.median(registered), 0.5)
    table.stated("mean, 95 % interval, %", interval(registered))
    table.at_most("a window of 2 s: more wall time, s", statistics.median(windows), 3.0)
    table.stated("mean, 95 % interval, s", interval(windows))
