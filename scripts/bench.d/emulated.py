"""What can be measured in an emulated machine (scripts/aarch64): shares of stacks, and ratios of times. Single times are the emulator's."""

import os
import subprocess
import sys

import profilers
from targets import Failed, Target

# Stops there are so long that the default would leave hardly any to measure.
OPTIONS = ("--max-stopped", "50")


def stopped(tool, seconds, samples, options=()):
    """How long the spinning probe was stopped in all, us, and how many samples the tool took of it meanwhile."""
    with Target.python("probe.py") as target:
        target.go()
        with tool.attach(target.pid, seconds, **({"options": options} if options else {})) as run:
            run.wait(seconds + 120)
            target.signal()
            stops_us = [gap[1] / 1e3 for gap in target.read_json()["gaps"] if gap[2]]
            return sum(stops_us), samples(run)


def stops(table, folder, pyspy, quick):
    """The stop time of a sample, by turns: an emulator has fast and slow minutes."""
    torchspy = profilers.TorchSpy(folder)
    other = profilers.PySpy(folder, pyspy, native=True)
    mine, theirs = [], []
    for _ in range(1 if quick else 4):
        mine.append(stopped(torchspy, 5, lambda run: torchspy.report(run.recording)["quality"]["fresh"], OPTIONS))
        theirs.append(stopped(other, 5, lambda run: (other.lost(run) or (0, 0))[0]))
        print(f"    us stopped, samples: {mine[-1]}; py-spy --native {theirs[-1]}", flush=True)
    (mine_us, mine_samples), (their_us, their_samples) = (map(sum, zip(*each)) for each in (mine, theirs))
    if not mine_samples or not their_samples:
        raise Failed("nothing was sampled")
    name = f"stop time of a sample ({mine_samples}) / py-spy --native ({their_samples})"
    table.at_most(name, mine_us / mine_samples / (their_us / their_samples), 1 / 8, "{:.3f}")


def numpy_stacks(table, folder, quick):
    """Stacks of a program that computes in NumPy's C code."""
    with Target.python("numpy_work.py", 600) as target:
        tool = profilers.TorchSpy(folder)
        with tool.attach(target.pid, 5 if quick else 25, options=OPTIONS) as run:
            run.wait(180)
            quality = tool.report(run.recording)["quality"]
    fresh = quality["fresh"]
    table.at_least(f"NumPy: rooted share of {fresh} fresh captures", quality["rooted_share"], 0.99, "{:.4f}")
    table.at_least(f"NumPy: merged share of {fresh} fresh captures", quality["merged_share"], 0.99, "{:.4f}")
    table.stated("    with a guessed frame", f"{100 * quality['guessed_stacks']:.1f} %")


def measure(table, folder, quick):
    """Bar 2 of issue 21."""
    table.heading(f"An emulated machine ({os.uname().machine}; --max-stopped 50)")
    missing = profilers.torchspy_missing()
    if missing:
        raise Failed(missing)
    if subprocess.run([sys.executable, "-c", "import numpy"], capture_output=True).returncode == 0:
        numpy_stacks(table, folder, quick)
    else:
        table.skip("NumPy: rooted and merged", "no NumPy")
    pyspy = profilers.pyspy_path()
    if pyspy:
        stops(table, folder, pyspy, quick)
    else:
        table.skip("stops / py-spy --native", "no py-spy")
