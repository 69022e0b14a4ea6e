"""Part 4: modules. Whether the path of every forward sample is one that the model's own named_modules() has, and what finding it
costs.

The trainer prints its names at its end; the report's tree is compared with them, path by path and class by class. A sample counts
as lost where its module was not read, where its path is not among the names, or where that path's class is another.
TORCHSPY_PYTHON chooses the interpreter whose environments are used, as scripts/torch-env says.
"""

import os
import subprocess
import time

import figures
import own
import profilers
import stops
from targets import ROOT, Failed, Target

SECONDS = 20
RATE = 200
LOSS = "CrossEntropyLoss"
# (what it is, argument of module_paths.py, environment of scripts/torch-env)
RUNS = (
    ("torchvision's ResNet-18", "resnet", "frameworks"),
    ("BERT of transformers", "bert", "frameworks"),
    ("the same, forward recomputed", "bert-recomputed", "frameworks"),
    ("a Lightning module", "lightning", "frameworks"),
    ("containers that are indexed, modules that are shared", "nested", "torch"),
    ("DDP, checkpoint and torch.compile wrappers", "wrapped", "torch"),
)


def environment(kind):
    """The Python of an environment, or None where it cannot be had."""
    if os.environ.get("TORCHSPY_NO_TORCH"):
        return None
    command = [os.path.join(ROOT, "scripts", "torch-env"), kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def version(python):
    """3.11 and so on."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", asked], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def recorded(tool, python, which, seconds):
    """One run under torchspy: its tree of modules, and the names of its model's."""
    with Target.python("module_paths.py", which, python=python, timeout=300) as target:
        with tool.attach(target.pid, seconds, rate=RATE) as run:
            target.go()
            run.wait(seconds + 120)
        target.signal()
        said = target.read_json(300)
    report = tool.report(run.recording)
    if report["forward"] is None or said["steps"] < 1:
        raise Failed(f"{which}: no forward was recorded, or no step made: {said['steps']}")
    return report["forward"], report["modules"], said["names"]


def strangers(rows, names):
    """(row, why) of all rows that the model does not have; a loss that is no part of it is a tree of its own."""
    found = []
    for row in rows:
        path, named = row["path"], names.get(row["path"])
        if row["root"] == LOSS and LOSS not in names.values():
            continue
        if row["root"] != names[""] or row["number"] != 0:
            found.append((row, "another tree"))
        elif named is None:
            found.append((row, "no such name"))
        elif row["class"] not in (None, named):
            found.append((row, f"is a {named}"))
        elif row["class"] is None and row["self_s"] > 0:
            found.append((row, "called, and without a class"))
    return found


def measure_run(table, tool, python, name, which, seconds):
    """The rows of one model."""
    forward, rows, names = recorded(tool, python, which, seconds)
    samples = forward["forward_s"] * RATE
    wrong = strangers(rows, names)
    lost = forward["unread_s"] + sum(row["self_s"] for row, _ in wrong)
    share = 100 * (1 - lost / forward["forward_s"])
    table.at_least(f"{name}, Python {version(python)}: of {samples:.0f} forward samples", share, 100, "{:.2f} %")
    for row, why in wrong[:5]:
        print(f"    {row['root']} #{row['number']} {row['path']!r} ({row['class']}): {why}", flush=True)
    called = {row["path"] for row in rows if row["self_s"] > 0}
    table.stated("    names seen", f"{len(called & names.keys())} of {len(names)}")
    table.stated("    in eval", f"{100 * sum(row['eval_s'] for row in rows if not row['path']) / forward['forward_s']:.1f} %")


def felt(tool, known, seconds):
    """The stops that a thread felt in the innermost of 13 modules, us."""
    arguments = ["--spin"] if known else ["--spin", "--hidden"]
    with Target.python("module_tower.py", *arguments) as target:
        target.go()
        with tool.attach(target.pid, seconds) as run:
            run.wait(seconds + 60)
        target.signal()
        lengths = stops.Felt(target.read_json()).stops_us
    if not lengths:
        raise Failed("the probe felt no stop")
    return lengths


def own_share(tool, known, rate, seconds):
    """torchspy's own CPU on a model of 48 layers, in percent of a core, and how often it sampled."""
    arguments = [] if known else ["--hidden"]
    with Target.python("module_tower.py", *arguments) as target:
        target.go()
        with tool.attach(target.pid, seconds, rate=rate) as run:
            warm_up = seconds / 5
            time.sleep(warm_up)
            cpu, since = own.cpu_seconds(run.process.pid), time.monotonic()
            time.sleep(max(0.5, run.started_ns / 1e9 + seconds - 0.5 - since))
            share = 100 * (own.cpu_seconds(run.process.pid) - cpu) / (time.monotonic() - since)
            run.wait(120)
        target.signal()
        target.read_line()
    forward = tool.report(run.recording)["forward"]
    if known != (forward is not None and forward["unread_s"] < 0.01 * forward["forward_s"]):
        raise Failed(f"modules that are known: {known}, and the report has {forward}")
    return share


def cost(table, tool, quick):
    """The same frames with and without modules in them, in turns: the stops that a thread feels, and torchspy's own CPU."""
    seconds, rounds = (3, 1) if quick else (10, 5)
    stopped = {True: [], False: []}
    for number in range(2 * rounds):
        known = number % 2 == 0
        stopped[known] += felt(tool, known, seconds)
    more = figures.median(stopped[True]) - figures.median(stopped[False])
    both = f"{figures.median(stopped[True]):.1f} with, {figures.median(stopped[False]):.1f} without"
    table.at_most("stop of a thread in 13 modules, p50, more than without", more, 10, "{:.1f}", f" us ({both})")
    for rate in (100, 1000):
        shares = {known: [own_share(tool, known, rate, seconds) for _ in range(rounds)] for known in (True, False)}
        with_, without = (figures.median(shares[known]) for known in (True, False))
        table.stated(f"own CPU on 48 layers at {rate} Hz", f"{with_:.1f} % of a core, {without:.1f} % without modules")


def measure(table, folder, quick):
    """Modules' paths."""
    seconds = 5 if quick else SECONDS
    table.heading(f"4. Modules ({seconds} s at {RATE} Hz each, against named_modules())")
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("modules", missing)
        return
    tool = profilers.TorchSpy(folder)
    pythons = {}
    for name, which, kind in RUNS:
        if kind not in pythons:
            pythons[kind] = environment(kind)
        if pythons[kind] is None:
            table.skip(name, f"no environment: scripts/torch-env {kind}")
            continue
        measure_run(table, tool, pythons[kind], name, which, seconds)
    cost(table, tool, quick)
