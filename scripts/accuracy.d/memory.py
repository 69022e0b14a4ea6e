"""Part memory: leaks planted in a trainer, and trainers without one (issue 22, bar 3)."""

import json
import os
import subprocess
import tempfile

import profilers
from targets import PROGRAMS, Failed, torch_python

LEAKS = ["list", "closure"]
RUNS = 10
SECONDS = 40


def record(folder, leak, seconds):
    """What the program printed at its end, and the report's uses of the host."""
    recording = os.path.join(tempfile.mkdtemp(dir=folder), "run.tspy")
    program = [torch_python(), os.path.join(PROGRAMS, "leaks.py"), leak, "--seconds", str(seconds)]
    done = subprocess.run([profilers.torchspy_path(), "record", "-o", recording, "--", *program], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise Failed(f"{program}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    report = subprocess.run([profilers.torchspy_path(), "report", recording, "--json"], capture_output=True, text=True, timeout=600, check=True)
    return said, json.loads(report.stdout)["host_use"]["processes"]


def measure(table, folder, quick):
    table.heading("memory that grows: planted leaks, and runs without one")
    runs, seconds = (1, SECONDS) if quick else (RUNS, SECONDS)
    for leak in LEAKS:
        found, errors = 0, []
        for _ in range(runs):
            said, processes = record(folder, leak, seconds)
            growing = [(each, each["memory_growth"]) for each in processes if each["memory_growth"]]
            # The trainer is listed first.
            found += [each for each, _ in growing] == processes[:1]
            for _, growth in growing:
                if said["planted"] and growth["per_step"]:
                    errors.append(100 * (growth["per_step"]["value"] * said["steps"] / said["planted"] - 1))
            print(f"  {leak}: {[(each['pid'], growth['per_step']) for each, growth in growing]} of {said}", flush=True)
        table.at_least(f"{leak}: found in the process, and no other named, runs", found, 0.9 * runs, "{:.0f}")
        if errors:
            table.stated("    bytes a step, largest error", f"{max(errors, key=abs):+.1f} %")
    wrong = sum(any(each["memory_growth"] for each in record(folder, "none", seconds)[1]) for _ in range(2 * runs))
    table.at_most("without a leak: one named, runs", wrong, 0, "{:.0f}")
