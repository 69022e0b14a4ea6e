"""What can be measured in an emulated machine (scripts/aarch64): shares of stacks, and ratios of times. Single times are the emulator's."""

import os
import subprocess
import sys

import profilers
from figures import median
from targets import Failed, Target

# Stops there are so long that the default would leave hardly any to measure.
OPTIONS = ("--max-stopped", "50")


def stops_us(tool, seconds, options=()):
    """Lengths of the stops that the spinning probe felt, us."""
    with Target.python("probe.py") as target:
        target.go()
        with tool.attach(target.pid, seconds, **({"options": options} if options else {})) as run:
            run.wait(seconds + 120)
            target.signal()
            return [gap[1] / 1e3 for gap in target.read_json()["gaps"] if gap[2]]


def stops(table, folder, pyspy, quick):
    """The mean stop, in turns: an emulator has fast and slow minutes."""
    torchspy = profilers.TorchSpy(folder)
    other = profilers.PySpy(folder, pyspy, native=True)
    mine, theirs = [], []
    for _ in range(1 if quick else 4):
        mine += stops_us(torchspy, 5, OPTIONS)
        theirs += stops_us(other, 5)
    if not mine or not theirs:
        raise Failed("the probe felt no stop")
    table.at_most(f"mean of {len(mine)} stops / of {len(theirs)} of py-spy --native", sum(mine) / len(mine) / (sum(theirs) / len(theirs)), 1 / 8, "{:.3f}")
    table.stated("    the same, medians", f"{median(mine) / median(theirs):.3f}")


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
