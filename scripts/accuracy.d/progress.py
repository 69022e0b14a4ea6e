"""Part 5: steps and epochs against the script's own count, and the median length of a step.

The script (tests/programs/train_progress.py, train_lightning.py, train_transformers.py) counts its steps and epochs and takes the time of
each step. torchspy launches it, and reads the same from outside.
"""

import json
import os
import statistics
import subprocess

import profilers
from targets import ROOT, Failed, torch_python
from targets import program as path_of

# What it is, program, arguments, whether it needs the frameworks.
RUNS = (
    ("plain loop, SGD", "train_progress.py", ("--epochs", 4, "--batches", 60, "--size", 32, "--evaluate"), False),
    ("plain loop, AdamW, 2 workers", "train_progress.py", ("--optimizer", "adamw", "--epochs", 4, "--batches", 60, "--size", 32, "--workers", 2), False),
    ("gradient accumulation, 4 batches", "train_progress.py", ("--accumulate", 4, "--epochs", 4, "--batches", 80, "--size", 16), False),
    ("Lightning", "train_lightning.py", ("--validate",), True),
    ("Transformers", "train_transformers.py", (), True),
)
QUICK = ("--epochs", 2, "--batches", 12)


def frameworks_python():
    """The Python that has the frameworks, or None where it cannot be had."""
    done = subprocess.run([os.path.join(ROOT, "scripts", "torch-env"), "frameworks"], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def compare(table, tool, python, folder, run, quick):
    name, program, arguments, _ = run
    recording = os.path.join(folder, "progress.tspy")
    arguments = [*arguments, *(QUICK if quick else ())]
    command = [profilers.torchspy_path(), "record", "--force", "-o", recording, "--", python, path_of(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise Failed(f"{name}: {done.stderr[-500:]}")
    truth = json.loads(done.stdout.strip().splitlines()[-1])
    progress = tool.report(recording)["progress"]
    if progress is None:
        raise Failed(f"{name}: no counter was read")
    for key in ("steps", "epochs"):
        off = abs((progress[key] or 0) - truth[key])
        table.at_most(f"{name}: {key}, {truth[key]} by the script's own count", off, 0, "{:.0f}", " off")
    median = statistics.median(truth["step_ms"])
    measured = (progress["step_ms"] or {}).get("p50")
    if measured is None:
        table.stated(f"{name}: a step of {median:.0f} ms is too short for percentiles, or too few were seen", "-")
        return
    table.at_most(f"{name}: p50 of a step, {median:.1f} ms by the script's own clock", 100 * abs(measured / median - 1), 3, "{:.1f} %")


def measure(table, folder, quick):
    """Steps and epochs."""
    table.heading("5. Progress (counts and times against the script's own)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("progress", missing)
        return
    tool = profilers.TorchSpy(folder)
    frameworks = None if quick else frameworks_python()
    for run in RUNS[:3] if quick else RUNS:
        if run[3] and frameworks is None:
            table.skip(run[0], "no environment with frameworks")
            continue
        compare(table, tool, frameworks if run[3] else python, folder, run, quick)
