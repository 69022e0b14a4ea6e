"""Part 9: verdicts on planted causes, on the simulated GPU node (docs/src/gpu-simulation.md).

tests/programs/gpu_causes.py trains with a cause that was planted into the script or into the node, in three strengths and on three
scripts, and goes on without it: what the script really gains is held against BOUND. Utilization and idle time of the device are held
against the node's truth log. Each cause has the verdicts that are right for it, and words that its next step has to have.
"""

import collections
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import tempfile

import figures
import node
import profilers
import recorded
from targets import Failed, Target, program, torch_python

STRENGTHS = (1.0, 0.5, 0.75)
SCRIPTS = ("cnn", "gpt", "mlp")
RECORDED_S, MENDED_S = 9, 3
# A recording that others' load spoils is made again.
MOST_RUNS = 2
# Rates of a device on which a step takes 100 ms: (TFLOP/s, GB/s) where products take three quarters
# of it, and where operators that read and write memory do.
COMPUTES = {"cnn": (0.44, 50), "gpt": (2.0, 68), "mlp": (0.17, 10)}
MOVES = {"cnn": (2.2, 15), "gpt": (10.0, 20), "mlp": (1.2, 1.6)}
# A link on which the gradients of a step take 300 ms, GB/s.
LINKS = {"cnn": 0.015, "gpt": 0.18, "mlp": 0.11}
# A bad slot: copies of the planted size take 40 ms.
PCIE_GB_S = 2.5


@dataclasses.dataclass(frozen=True)
class Cause:
    """A planted cause: the verdicts that are right for it (name and detail), what it is called among the largest costs where there is no
    single cause, words of the right next step, and why these."""

    verdicts: tuple
    cost: str
    next_step: str
    why: str
    # What BOUND is held against: the gain without the cause, the gain on a host that costs nothing,
    # or nothing (no bound is given).
    bound: str = "mended"
    # The rank that the verdict has to be about; None without ranks.
    rank: int = None


# `next_step` is a regular expression. Where torchspy's vocabulary has no name for the cause, the
# verdict that leads to it counts.
CAUSES = {
    "workers": Cause(
        (("input-bound", "batch work"),), "input", r"workers 0 -> [1-9]",
        "the main process makes batches by itself: several lines of CPU work, none of which is slow, and no workers",
    ),
    "storage": Cause(
        (("input-bound", "storage"),), "input", r"in reads",
        "the only worker waits in recv() for a server of files that answers late",
    ),
    "transform": Cause(
        (("input-bound", "batch work"),), "input", r"gpu_causes\.py:\d+|elastic|cheaper batches|workers 1 -> ",
        "one line of the dataset takes all of the worker's time. The verdict knows batch work alone; more workers help as well, where "
        "there are CPUs",
    ),
    "launch": Cause(
        (("launch-bound", None),), "launches", r"larger batches",
        "a batch in pieces: as many times the launches. Python-bound is wrong: no Python of the script's own runs, and what runs is torch's. "
        "The bound is that of the same kernels; those of a whole batch also take less time, so the script gains more",
        "host",
    ),
    "python": Cause(
        (("Python-bound", None),), "Python", r"take Python out of the step at gpu_causes\.py:\d+",
        "a loop in Python, in each step, in the script's own code",
    ),
    "sync": Cause(
        (("sync-bound", None),), "waiting for the GPU", r"item.* out of the step",
        "loss.item(): the device waits for what the host does next, which it could do meanwhile",
    ),
    "copy": Cause(
        (("copy-bound", None),), "copies", r"pinned memory|pin_memory",
        "a pageable copy waits for the device, as .item() does, and for the copy itself",
    ),
    "gpu": Cause(
        (("GPU-bound", "compute"),), "GPU-bound", r"autocast|operations of the model",
        "matrix products take nearly all of the step, on a host that runs ahead. The bound is that of a host that costs nothing",
        "host",
    ),
    "dram": Cause(
        (("GPU-bound", "DRAM"),), "GPU-bound", r"fuse operators",
        "operators that move memory take most of the step, on a host that runs ahead",
        "host",
    ),
    "throttled": Cause(
        (("throttled", None),), "throttled", r"clocks are held down",
        "the device is slower from the start, and says that its clocks are held down; there is no bound",
        "none",
    ),
    "communication": Cause(
        (("communication-bound", None),), "collectives", r"fewer or larger collectives",
        "gradients over a slow link between two ranks, for longer than backward can hide; both ranks wait for the link and neither for "
        "the other",
        rank=0,
    ),
    "straggler": Cause(
        (("input-bound", "storage"),), "input", r"in reads",
        "the storage of rank 1 answers late, that of rank 0 does not. Slow ranks have no name of their own: the verdict is that of the "
        "slow rank, and says which one it is",
        rank=1,
    ),
}  # fmt: skip
RANKS = ("communication", "straggler")
# Either of the two is right, and so is to say that there is no single one.
COMBINATIONS = (
    ("storage", "sync"), ("transform", "python"), ("launch", "copy"), ("python", "sync"), ("workers", "throttled"), ("dram", "copy"),
)  # fmt: skip
# On one script, in about 45 s.
QUICK = (("storage",), ("sync",))


def scenario(script, causes, strength):
    """The node's scenario, with what is planted into devices. Waits block: a thread that spins takes the CPU of others here."""
    tflops, gb_s = MOVES[script] if "dram" in causes else COMPUTES[script]
    gpu = {"tflops": tflops, "gb_s": gb_s, "pcie_gb_s": PCIE_GB_S}
    slower = 1 + 2 * strength
    if "gpu" in causes:
        gpu["tflops"] /= slower
    if "dram" in causes:
        gpu["gb_s"] /= slower
    if "throttled" in causes:
        gpu["throttle"] = {"from_s": 0.0, "factor": slower}
    link = LINKS[script] / strength if "communication" in causes else 100.0
    gpus = [{**gpu, "uuid": f"GPU-51700000-0000-0000-0000-{number:012x}"} for number in range(2 if set(RANKS) & set(causes) else 1)]
    # Small kernels. A convolution's are larger than those of the others.
    slow = {"cnn": 0.02}.get(script, 0.05) if "launch" in causes else 1.0
    return {"gpus": gpus, "link_gb_s": link, "slow": slow, "wait": "block"}


class Busy:
    """When a device ran something, by the truth logs of a node's folder: spans that do not overlap, in order."""

    def __init__(self, folder, device=0):
        found = [(start, end) for start, end, _, which in node.records(folder, node.WORK) if which == device]
        self.spans, until = [], 0
        for start, end in sorted(found):
            if end > until:
                self.spans.append((max(start, until), end))
                until = end

    def share(self, from_ns, to_ns):
        """Of a window."""
        return sum(max(min(end, to_ns) - max(start, from_ns), 0) for start, end in self.spans) / (to_ns - from_ns)


def window_of(recording):
    """Begin and end of a recording, ns of CLOCK_MONOTONIC."""
    done = subprocess.run([profilers.torchspy_path(), "inspect", recording], capture_output=True, text=True, timeout=120)
    found = recorded.WINDOW.search(done.stdout)
    if not found:
        raise Failed(f"inspect {recording}: no window in {done.stdout[:400]!r} {done.stderr[-400:]!r}")
    start = recorded._ns(found[1])
    return start, start + recorded._ns(found[2])


def rate(step_ns, window):
    """Steps per second within a window."""
    inside = [end for end in step_ns if window[0] <= end <= window[1]]
    return (len(inside) - 1) / ((inside[-1] - inside[0]) / 1e9)


@dataclasses.dataclass
class Run:
    """What one run said, and the truth."""

    script: str
    causes: tuple
    strength: float
    verdict: dict
    cpu_wait: float
    utilization: float
    idle: float
    busy: float
    # By cause, how many times as fast the script is without it.
    gains: dict

    def said(self):
        """(name, detail) of the verdict; None for no single one."""
        return (self.verdict["cause"], self.verdict["detail"]) if self.verdict.get("cause") else None

    def named(self):
        """The planted cause that the verdict is right about."""
        said = self.said()
        right = (cause for cause in self.causes if said in CAUSES[cause].verdicts and CAUSES[cause].rank in (None, self.verdict["rank"]))
        return next(right, None)

    def is_disturbed(self):
        """Whether others' load is what it speaks of: no planted cause takes CPUs away."""
        return self.verdict.get("cause") == "CPU-starved"

    def is_honest(self):
        """Whether it says that there is no single cause, and lists a planted one among the largest costs."""
        costs = [cost["what"] for cost in self.verdict.get("costs", [])]
        # "collectives that spin on the GPU, or small kernels" are collectives.
        listed = any(what.startswith(CAUSES[cause].cost) for what in costs for cause in self.causes)
        return self.said() is None and listed

    def next_is_right(self):
        """Whether the next step of a right verdict has the right words."""
        return bool(re.search(CAUSES[self.named()].next_step, self.verdict["next_step"]))

    def bound_by_gain(self):
        """BOUND by the true gain, of a right verdict; None where there is none."""
        kind = CAUSES[self.named()].bound
        bound = self.verdict["at_most"]
        if kind == "none" or not bound:
            return None
        return bound["speedup"] / (1 / self.busy if kind == "host" else self.gains[self.named()])

    def text(self):
        """A line about it."""
        said, rank = self.said(), self.verdict.get("rank")
        name = f"{said[0]}{f' ({said[1]})' if said[1] else ''}" if said else "no single one"
        name += f" of rank {rank}" if rank is not None else ""
        costs = ", ".join(f"{cost['what']} {100 * cost['share']:.0f} %" for cost in self.verdict.get("costs", []))
        bound = self.verdict.get("at_most")
        gains = ", ".join(f"{cause} {gain:.2f}x" for cause, gain in self.gains.items())
        return (
            f"    {self.script} {' + '.join(self.causes)} {self.strength}: {name}{f' [{costs}]' if costs else ''},"
            f" {self.verdict.get('confidence')}, bound {bound['speedup'] if bound else math.nan:.2f}x, gains {gains};"
            f" GPU busy {100 * self.busy:.1f} %, said {100 * self.utilization:.1f} % and idle {100 * self.idle:.1f} %;"
            f" without a CPU {100 * self.cpu_wait:.0f} %; NEXT {self.verdict.get('next_step')}"
        )


def words(python, script, causes, strength, seconds, mended):
    """The command of a training with planted causes."""
    command = [python]
    if set(RANKS) & set(causes):
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    command += [program("gpu_causes.py"), *(word for cause in causes for word in ("--cause", cause))]
    return [*command, "--model", script, "--strength", strength, "--seconds", seconds, "--mended", mended]


def run(tool, folder, python, script, causes, strength, seconds=RECORDED_S, mended=MENDED_S):
    """Records a training with planted causes, and lets it go on without each of them."""
    home = tempfile.mkdtemp(prefix="node-", dir=folder)
    try:
        command = node.command(home, scenario(script, causes, strength), words(python, script, causes, strength, seconds + 3, mended))
        with Target(command, timeout=180) as target:
            with tool.attach(target.pid, duration=seconds, options=("--force",), variables=node.variables(home)) as attached:
                attached.wait(seconds + 60)
            said = target.read_json(180)
            target.process.wait(60)
        report, window = tool.report(attached.recording), window_of(attached.recording)
        planted = rate(said["step_ns"], window)
        idle = next((row for row in report["gpu_idle"] if row["kind"] == "all"), None)
        measured = Run(
            script,
            causes,
            strength,
            report["verdict"] or {},
            report["activities"]["cpu_wait"],
            report["gpus"][0]["utilization"],
            idle["seconds"] / idle["covered_s"] if idle else math.nan,
            Busy(home).share(*window),
            {cause: each["steps"] / each["seconds"] / planted for cause, each in said["mended"].items()},
        )
        if os.environ.get("TORCHSPY_KEEP"):
            path = os.path.join(os.environ["TORCHSPY_KEEP"], f"{script}-{'-'.join(causes)}-{strength}-{window[0]}")
            shutil.copy(attached.recording, path + ".tspy")
            with open(path + ".json", "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(measured), file)
        return measured
    finally:
        shutil.rmtree(home)


def rows(table, causes, runs):
    """The rows of a cause, or of a combination."""
    name = " + ".join(causes)
    counts = collections.Counter()
    wrong, next_right, off = collections.Counter(), 0, []
    for each in runs:
        if each.is_disturbed():
            continue
        if each.is_honest():
            counts["none"] += 1
        elif each.said() is None:
            counts["missed"] += 1
        elif each.named() is None:
            counts["wrong"] += 1
            wrong[each.said()[0]] += 1
        else:
            counts["right"] += 1
            next_right += each.next_is_right()
            bound = each.bound_by_gain()
            off += [] if bound is None else [abs(bound - 1)]
    judged = sum(counts.values())
    label = f"{name}: right, of {judged}"
    if judged:
        table.stated(label, f"{counts['right']}, {counts['none']} no single one")
        table.at_most("    no single one, and not among the costs", counts["missed"], 0, "{:.0f}")
        table.at_most(f"    wrong {', '.join(wrong)}".rstrip(), counts["wrong"], 0, "{:.0f}")
    else:
        table.skip(label, "others' load disturbed all runs")
    if counts["right"]:
        table.at_least(f"    next step right, of {counts['right']}", next_right, counts["right"], "{:.0f}")
    if off:
        table.at_most("    bound against the true gain, median off", 100 * figures.median(off), 15, "{:.1f}", " %")
    if runs:
        util, idle = ([100 * abs(of(each)) for each in runs] for of in (lambda r: r.utilization - r.busy, lambda r: r.idle - (1 - r.busy)))
        table.at_most("    GPU busy against the truth log, mean off", sum(util) / len(util), 3, "{:.1f}", " points")
        table.at_most("    GPU idle against the truth log, mean off", sum(idle) / len(idle), 3, "{:.1f}", " points")
    if len(runs) > judged:
        table.stated("    runs that others' load disturbed (CPU-starved)", str(len(runs) - judged))
    return counts


def measure(table, folder, quick):
    """Planted causes."""
    table.heading("9. Planted causes on the simulated GPU node (against scripts that go on without them, and the node's truth log)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("planted causes", missing)
        return
    tool = profilers.TorchSpy(folder)
    only = os.environ.get("TORCHSPY_CAUSES", "").split()
    alone = [(cause,) for cause in CAUSES]
    plans = [(causes, strength) for strength in STRENGTHS for causes in (alone + list(COMBINATIONS) if strength == 1 else alone)]
    plans = [(causes, 1.0) for causes in QUICK] if quick else [plan for plan in plans if not only or "+".join(plan[0]) in only]
    plans = [(script, *plan) for plan in plans for script in (SCRIPTS[2:] if quick else SCRIPTS)]
    runs, made = collections.defaultdict(list), 0
    try:
        for script, causes, strength in plans:
            for _ in range(1 if quick else MOST_RUNS):
                try:
                    each = run(tool, folder, python, script, causes, strength, *((5, 2) if quick else ()))
                except (Failed, OSError, ValueError, KeyError, IndexError) as error:
                    table.fail(f"{script} {' + '.join(causes)} {strength}: not measured", f"{type(error).__name__}: {error}")
                    break
                print(each.text(), flush=True)
                runs[causes].append(each)
                if not each.is_disturbed():
                    break
            made += 1
    except KeyboardInterrupt:
        table.skip(f"{len(plans) - made} of {len(plans)} runs", "interrupted")
    total = collections.Counter()
    for causes, of_cause in runs.items():
        total += rows(table, causes, of_cause)
    judged = sum(total.values())
    if judged:
        fair = 100 * (total["right"] + total["none"]) / judged
        table.at_least(f"all: right or honestly no single one, of {judged} runs", fair, 95, "{:.0f}", " %")
