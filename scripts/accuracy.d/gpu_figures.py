"""Part 10: what the report says of CUDA trainings on the simulated GPU node (docs/src/gpu-simulation.md), against the truth.

tests/programs/gpu_train.py and gpu_ranks.py train as people do and write down their steps and phases; the node writes down what its
devices did. Each kind is recorded from its start, with hooks that time its outermost modules and what these call. torch.profiler costs
too much for that: operators are compared with a run of its own.
"""

import bisect
import collections
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import shutil
import subprocess
import tempfile

import operators
import profilers
import recorded
from gpu import Busy, window_of
from targets import ROOT, Failed, program, torch_python

RATE = 200
# Standard errors of sampling that an error may have beyond its limit.
ERRORS = 3
# The power of a node's device: tests/nvml_double/src/scenario.rs. Its counter moves every 100 ms.
IDLE_W, BUSY_W = 70, 500
COUNTER_NS = 100_000_000
# Steps of the run with torch.profiler, as a share of the recorded one's.
SHORT = 0.25
# Steps at the start that are left out: gpu_train.py's hooks begin after them.
SKIPPED = 3
# Operators of which torch.profiler's own events are a large part, by their mean length.
BRIEF_US = 5
WAITS = "aten::_local_scalar_dense"
# The report's phases, by the script's. All others are compared with what is left of the script's.
PHASES = {"forward": ("forward",), "backward": ("backward", "recompute"), "optimizer": ("optimizer",), "input": ("input",)}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A training: the model of gpu_train.py or the wrapper of gpu_ranks.py, steps for some 12 s, and how much slower its device is than
    the default one, so that it is busy for about half of the time."""

    model: str
    steps: int
    slow: float
    gpus: int = 1
    wait: str = "spin"
    # Whether a DataLoader gives the batches: else input is the script's own code.
    loads: bool = False
    ranks: bool = False

    def name(self):
        """As rows have it."""
        return self.model + (" (block)" if self.wait == "block" else "")


KINDS = (
    Kind("cnn", 300, 4, loads=True),
    Kind("cnn", 300, 4, wait="block", loads=True),
    Kind("gpt", 400, 8),
    Kind("gpt", 400, 8, wait="block"),
    Kind("graphs", 400, 8),
    Kind("inference", 250, 8, loads=True),
    Kind("accumulation", 130, 8),
    Kind("checkpoint", 300, 8),
    Kind("checkpoint_reentrant", 300, 8),
    Kind("gan", 1500, 10),
    Kind("lora", 400, 8),
    Kind("hooks", 400, 8),
    Kind("caller", 400, 8),
    Kind("two_devices", 600, 12, gpus=2),
    Kind("amp", 250, 4, loads=True),
    Kind("ddp", 800, 30, gpus=2, ranks=True),
    Kind("fsdp", 500, 30, gpus=2, ranks=True),
)
QUICK = ("gan", "cnn")
QUICK_STEPS = 0.25


class Spans(Busy):
    """The same, with the time that a device was busy in any window at the cost of two look-ups."""

    def __init__(self, folder, device):
        super().__init__(folder, device)
        self.starts = [start for start, _ in self.spans]
        self.until = [0, *itertools.accumulate(end - start for start, end in self.spans)]

    def before(self, at_ns):
        """Busy time until then."""
        number = bisect.bisect_right(self.starts, at_ns)
        return self.until[number] - (max(self.spans[number - 1][1] - at_ns, 0) if number else 0)

    def busy_ns(self, from_ns, to_ns):
        """Busy time of a window."""
        return self.before(to_ns) - self.before(from_ns)

    def joules(self, from_ns, to_ns):
        """Energy of a window."""
        return (IDLE_W * (to_ns - from_ns) + (BUSY_W - IDLE_W) * self.busy_ns(from_ns, to_ns)) / 1e9


@dataclasses.dataclass
class Run:
    """A recorded training: what it said itself, the report of all and that of its steps, the counter tracks of its device, and what that
    device did."""

    said: dict
    report: dict
    of_steps: dict
    skipped: int
    tracks: dict
    device: Spans

    def captures(self, seconds):
        """Of the training thread."""
        return self.report["quality"]["training_hz"] * seconds

    def allowed(self, limit, share, seconds):
        """A limit in points and what sampling may add to it."""
        share = min(max(share, 0.0), 1.0)
        return limit + ERRORS * 100 * math.sqrt(share * (1 - share) / max(self.captures(seconds), 1))


def command_of(python, kind, steps, more=()):
    """The command that trains."""
    if kind.ranks:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(kind.gpus), program("gpu_ranks.py")]
        return [python, *launch, "--wrapper", kind.model, "--width", "1024", "--layers", "8", "--steps", str(steps)]
    return [python, program("gpu_train.py"), "--model", kind.model, "--steps", str(steps), *more]


def on_node(folder, kind, command):
    """Runs a command on a node: the lines of JSON that it printed, and the node's folder."""
    node = tempfile.mkdtemp(prefix="node-", dir=folder)
    plan = os.path.join(node, "plan.json")
    gpus = [{"uuid": f"GPU-51700000-0000-0000-0000-{number:012x}"} for number in range(kind.gpus)]
    with open(plan, "w", encoding="utf-8") as file:
        json.dump({"gpus": gpus, "slow": kind.slow, "wait": kind.wait}, file)
    command = [os.path.join(ROOT, "scripts", "gpu-sim"), "--scenario", plan, "--folder", node, "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise Failed(f"{command}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], node


def tracks_of(recording):
    """Windows (start and end, ns of CLOCK_MONOTONIC) of each counter track of a device, by UUID and track."""
    begin, _ = window_of(recording)
    tracks = collections.defaultdict(list)
    text = recorded._output("convert", "--force", "--format", "csv", "-o", "-", recording)
    for row in csv.DictReader(io.StringIO(text)):
        if row["uuid"] and not row["missing"]:
            tracks[row["uuid"], row["lane"]].append(tuple(begin + recorded._ns(row[end]) for end in ("start_s", "end_s")))
    return tracks


def report_of(recording, *options):
    """`report --json`."""
    return json.loads(recorded._output("report", "--json", *options, recording))


def record(folder, python, kind, steps):
    """Records a training from its start to its end."""
    recording = tempfile.mktemp(prefix="run-", suffix=".tspy", dir=folder)
    torchspy = [profilers.torchspy_path(), "record", "--force", "--rate", str(RATE), "-o", recording, "--"]
    said, node = on_node(folder, kind, [*torchspy, *command_of(python, kind, steps, ["--modules"])])
    try:
        if os.environ.get("TORCHSPY_KEEP"):
            kept = os.path.join(os.environ["TORCHSPY_KEEP"], kind.name().replace(" ", "-"))
            shutil.copy(recording, kept + ".tspy")
            with open(kept + ".json", "w", encoding="utf-8") as file:
                json.dump(said, file)
        report = report_of(recording)
        if kind.ranks:
            primary = report["processes"][report["primary"]]["pid"]
            said = [each for each in said if each["pid"] == primary]
        said = said[-1]
        said["step_ns"] = said.get("step_ns") or said["spans"]
        skipped = SKIPPED if report["progress"] else 0
        of_steps = report_of(recording, "--skip-steps", str(SKIPPED), "--steps", str(steps - SKIPPED - 1)) if skipped else report
        return Run(said, report, of_steps, skipped, tracks_of(recording), Spans(node, said.get("rank", 0)))
    finally:
        shutil.rmtree(node)


def worst(rows):
    """Of (what, error, allowed) the one that comes closest to what is allowed, or is the furthest beyond it."""
    return max(rows, key=lambda row: row[1] / row[2])


def phases(table, kind, run):
    """Shares of the time of the steps; without a count of steps, of all that the script did in steps."""
    steps = run.said["step_ns"][run.skipped : -1 if run.skipped else None]
    begin, end = steps[0][0], steps[-1][1]
    seconds = (end - begin) / 1e9
    within = {name: sum(to - at for at, to in spans if at >= begin and to <= end) / 1e9 for name, spans in run.said["phases"].items()}
    names = [name for name in PHASES if name != "input" or kind.loads]
    whole = run.of_steps["wall_s"] if run.skipped else seconds
    said = {name: sum(run.of_steps["phases"].get(phase, 0) for phase in PHASES[name]) * run.of_steps["wall_s"] / whole for name in names}
    true = {name: within[name] / seconds for name in names}
    if kind.ranks:
        # FSDP's own collectives are the phase `communication`, in forward and in backward.
        said["model"] = said.pop("forward") + said.pop("backward") + run.of_steps["phases"]["communication"] * run.of_steps["wall_s"] / whole
        true["model"] = true.pop("forward") + true.pop("backward")
    said["rest"], true["rest"] = 1 - sum(said.values()), 1 - sum(true.values())
    found = []
    for name in said:
        found.append((name, 100 * abs(said[name] - true[name]), run.allowed(1.5, true[name], seconds)))
    text = ", ".join(f"{name} {100 * true[name]:.1f} ({100 * (said[name] - true[name]):+.1f}, ±{found[at][2]:.1f})" for at, name in enumerate(said))
    print(f"    {kind.name()} phases, %: {text}", flush=True)
    name, off, allowed = worst(found)
    table.at_most(f"{kind.name()}: phases, worst: {name}", off, allowed, "{:.2f}", " points")
    return {name: 100 * (said[name] - true[name]) for name in said}


def steps(table, kind, run):
    """Their number, and how long they take."""
    progress, true = run.report["progress"], run.said["steps"]
    if progress is None:
        table.stated(f"{kind.name()}: steps, {true}: no counter moves", "-")
        return None
    least, most = progress["steps"], progress["steps_at_most"] or progress["steps"]
    off = max(least - true, true - most, 0)
    table.at_most(f"{kind.name()}: steps, {true}: {least} to {most} {progress['unit']}", off, 0, "{:.0f}", " off")
    warm = progress["warmup"]["steps"]
    spans = run.said["step_ns"][max(warm, 1) :]
    mean = (spans[-1][1] - spans[0][0]) / len(spans) / 1e6
    if not progress["step_ms"]:
        table.fail(f"{kind.name()}: mean step, {mean:.2f} ms", "no length of a step")
        return None
    error = 100 * (progress["step_ms"]["mean"] / mean - 1)
    table.at_most(f"{kind.name()}: mean step, {mean:.2f} ms, {warm} of warm-up", abs(error), 1, "{:.2f} %")
    return error


def device(table, kind, run):
    """Utilization and idle time of the first device, and its energy."""
    gpu = next(each for each in run.report["gpus"] if each["uuid"].endswith(f"{run.said.get('rank', 0):012x}"))
    windows = run.tracks[gpu["uuid"], "utilization"]
    busy = sum(run.device.busy_ns(*window) for window in windows) / sum(end - start for start, end in windows)
    off = 100 * (gpu["utilization"] - busy)
    table.at_most(f"{kind.name()}: GPU busy {100 * busy:.1f} %", abs(off), 1, "{:.2f}", " points")
    idle = [row for row in run.report["gpu_idle"] if row["kind"] == "all" and row["gpu"] == gpu["index"]]
    if idle and idle[0]["seconds"] is not None:
        # Of the training thread's time: no other process uses the device.
        busy_s = sum(run.device.busy_ns(*window) for window in windows) / 1e9
        idle_off = 100 * (idle[0]["seconds"] + busy_s - idle[0]["covered_s"]) / idle[0]["covered_s"]
        table.at_most(f"{kind.name()}: GPU idle", abs(idle_off), 3, "{:.2f}", " points")
    else:
        table.stated(f"{kind.name()}: GPU idle", "not resolved")
    found = {"busy": off}
    readings = run.tracks[gpu["uuid"], "energy"]
    begin, end = (at // COUNTER_NS * COUNTER_NS for at in (readings[0][0], readings[-1][1]))
    true = run.device.joules(begin, end)
    of_device = next(each for each in run.report["energy"]["devices"] if each["uuid"] == gpu["uuid"])
    found["energy"] = 100 * (of_device["energy_j"] / true - 1)
    table.at_most(f"{kind.name()}: energy, {true:.0f} J", abs(found["energy"]), 2, "{:.2f} %")
    energy(table, kind, run, of_device)
    return found


def energy(table, kind, run, of_device):
    """Energy by step and phase, and the bounds of both."""
    rank = next((each for each in run.report["energy"]["ranks"] if each["gpu"] == of_device["gpu"]), None)
    if rank is None:
        table.fail(f"{kind.name()}: energy of the rank", "not there")
        return
    spans = run.said["step_ns"][1:]
    outside = []
    if rank["step"]:
        true = run.device.joules(spans[0][0], spans[-1][1]) / len(spans)
        table.at_most(f"{kind.name()}: energy of a step, {true:.2f} J", 100 * abs(rank["step"]["energy_j"] / true - 1), 2, "{:.2f} %")
        bounds = rank["step"]["interval"]
        if not bounds["low"] <= true <= bounds["high"]:
            outside.append(f"step {bounds['low']:.3f} to {bounds['high']:.3f}, truth {true:.3f}")
    elif run.skipped:
        table.fail(f"{kind.name()}: energy of a step", "not there")
    for each in rank["phases"]:
        name = next((name for name, own in PHASES.items() if own[0] == each["phase"]), None)
        if each["energy"] is None:
            continue
        bounds, whole = each["energy"]["interval"], of_device["energy_j"]
        if bounds["high"] > 1.001 * whole:
            outside.append(f"{each['phase']} up to {bounds['high']:.0f} of {whole:.0f} J")
        if name in ("forward", "backward", "optimizer"):
            true = sum(run.device.joules(*span) for span in run.said["phases"][name])
            if not bounds["low"] <= true <= bounds["high"]:
                outside.append(f"{name} {bounds['low']:.0f} to {bounds['high']:.0f}, truth {true:.0f} J")
    table.at_most(f"{kind.name()}: bounds of energy that the truth breaks", len(outside), 0, "{:.0f}")
    for text in outside:
        print(f"    {text}", flush=True)


def own_operators(table, kind, run, said):
    """Operators against torch.profiler's, as the part `operators` has it. An event costs torch.profiler about a microsecond: operators
    that are not much longer are left out on both sides. So is the one that waits for the device, for less time where the host is slower."""
    ours = {row["name"]: row["self_s"] for row in run.of_steps["ops"]}
    theirs = said["self_cpu_us"]
    apart = {name for name, us in theirs.items() if name.startswith(operators.PREFIX) and us < BRIEF_US * said["calls"][name]}
    apart.add(WAITS)
    left_out = sum(operators.shares(theirs).get(name, 0) for name in apart), sum(operators.shares(ours).get(name, 0) for name in apart)
    ours, theirs = ({name: time for name, time in times.items() if name not in apart} for times in (ours, theirs))
    if not any(name.startswith(operators.PREFIX) for name in ours.keys() & theirs.keys()):
        table.stated(f"{kind.name()}: operators: none is left", "-")
        return None
    own, true = operators.shares(ours), operators.shares(theirs)
    samples = sum(seconds for name, seconds in ours.items() if name.startswith(operators.PREFIX)) * run.report["quality"]["training_hz"]
    distance, noise = 100 * operators.distance(own, true), 100 * operators.noise(true, samples)
    if noise > 6:
        table.stated(f"{kind.name()}: operators, distance: too few samples, {samples:.0f}", f"{distance:.1f} %, {noise:.1f} % by sampling")
        return None
    table.at_most(f"{kind.name()}: operators, distance ({noise:.1f} % by sampling)", distance, 6 + noise, "{:.1f} %")
    table.stated(f"    left out, waits and below {BRIEF_US} us: torch.profiler's, ours", " and ".join(f"{100 * share:.1f} %" for share in left_out))
    found = [
        (name, 100 * abs(own.get(name, 0) - true.get(name, 0)), 2 + ERRORS * 100 * math.sqrt(share * (1 - share) / samples))
        for name, share in ((name, max(own.get(name, 0), true.get(name, 0))) for name in own.keys() | true.keys())
        if share > operators.LARGE
    ]
    name, off, allowed = worst(found)
    table.at_most(f"    worst of {len(found)} above 3 %: {name[len(operators.PREFIX) :]}", off, allowed, "{:.2f}", " points")
    for name, off, allowed in sorted(found, key=lambda row: row[2] / max(row[1], 1e-9))[:3]:
        print(f"    {name:<40}{100 * own.get(name, 0):>8.2f} %{100 * true.get(name, 0):>8.2f} %  ±{allowed:.2f}", flush=True)
    return distance


def own_modules(table, kind, run):
    """Modules that an outermost one calls, as shares of forward, against hooks."""
    begin = run.said["step_ns"][SKIPPED][0]
    forward = sum(end - start for start, end in run.said["phases"]["forward"] if start >= begin)
    true = {name: ns / forward for name, ns in run.said["module_ns"].items()}
    own, whole = collections.Counter(), run.of_steps["forward"]["forward_s"]
    for row in run.of_steps["modules"]:
        own[f"{row['root']} {row['path']}"] += row["total_s"] / whole
    found = [(name, 100 * abs(own[name] - share), run.allowed(3, share, whole)) for name, share in true.items() if share]
    name, off, allowed = worst(found)
    table.at_most(f"{kind.name()}: modules, worst of {len(found)}: {name}", off, allowed, "{:.2f}", " points")
    for name, _, allowed in sorted(found, key=lambda row: row[2] / max(row[1], 1e-9))[:3]:
        print(f"    {name:<40}{100 * own[name]:>8.2f} %{100 * true[name]:>8.2f} %  ±{allowed:.2f}", flush=True)
    return off


def compare(table, folder, python, kind, quick):
    """All figures of a kind: errors by figure."""
    count = round(kind.steps * (QUICK_STEPS if quick else 1))
    run = record(folder, python, kind, count)
    errors = {f"phase {name}": off for name, off in phases(table, kind, run).items()}
    errors["mean step"] = steps(table, kind, run)
    errors |= device(table, kind, run)
    if run.said.get("module_ns"):
        errors["modules"] = own_modules(table, kind, run)
    # A replay calls no operator.
    if not kind.ranks and not quick and run.skipped:
        said, node = on_node(folder, kind, command_of(python, kind, max(round(kind.steps * SHORT), 20), ["--profile"]))
        shutil.rmtree(node)
        errors["operators"] = own_operators(table, kind, run, said[-1])
    return {figure: error for figure, error in errors.items() if error is not None}


def measure(table, folder, quick):
    """Figures of the report on the simulated node."""
    table.heading(f"10. Figures of CUDA trainings on the simulated GPU node (at {RATE} Hz, against the scripts' clocks and the node's truth log)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("figures on the simulated node", missing)
        return
    only = os.environ.get("TORCHSPY_KINDS", "").split()
    errors = collections.defaultdict(list)
    for kind in KINDS:
        if (quick and (kind.model not in QUICK or kind.wait == "block")) or (only and kind.model not in only):
            continue
        try:
            for figure, off in compare(table, folder, python, kind, quick).items():
                errors[figure].append((off, kind.name()))
        except (Failed, OSError, ValueError, KeyError, IndexError, StopIteration, subprocess.TimeoutExpired) as error:
            table.fail(f"{kind.name()}: not measured", f"{type(error).__name__}: {error}")
    for figure, found in errors.items():
        off, name = max(found, key=lambda each: abs(each[0]))
        mean = sum(each for each, _ in found) / len(found)
        table.stated(f"all: {figure}, worst ({name}), mean", f"{off:+.2f}, {mean:+.2f}")
