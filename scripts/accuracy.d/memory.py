"""Part memory: leaks planted in a trainer, and trainers without one (issue 22, bar 3)."""

import json
import os
import subprocess
import tempfile

import profilers
from targets import PROGRAMS, Failed, torch_python

# What has to be named: the process (the trainer is listed first), and a variable or functions.
LEAKS = {
    "list": (0, "kept", ["main"]),
    "closure": (0, "callbacks", ["main"]),
    "graphs": (0, "kept", ["main"]),
    "arrays": (0, "recent", ["main"]),
    "fragments": (0, "kept", ["pack"]),
    "copies": (1, None, ["Shared.__getitem__"]),
}
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


def is_named(growth, variable, functions):
    """Whether the planted container, or the line that raises memory, is named."""
    container, line = growth["container"] or growth["keeps_graphs"], growth["line"]
    if container:
        return container["name"] == variable
    return bool(line) and line["file"].endswith("leaks.py") and line["function"].split(".<locals>")[0] in functions


def measure(table, folder, quick):
    table.heading("memory that grows: planted leaks, and runs without one")
    runs, seconds = (1, SECONDS) if quick else (RUNS, SECONDS)
    for leak, (process, variable, functions) in LEAKS.items():
        found, named, errors = 0, 0, []
        for _ in range(runs):
            said, processes = record(folder, leak, seconds)
            growing = [(each, each["memory_growth"]) for each in processes if each["memory_growth"]]
            is_found = [each for each, _ in growing] == processes[process : process + 1]
            found += is_found
            named += is_found and is_named(growing[0][1], variable, functions)
            for _, growth in growing:
                if said["planted"] and growth["per_step"]:
                    errors.append(100 * (growth["per_step"]["value"] * said["steps"] / said["planted"] - 1))
            causes = [(each["pid"], growth["per_step"], growth["container"], growth["line"], growth["explained"]) for each, growth in growing]
            print(f"  {leak}: {causes} of {said}", flush=True)
        table.at_least(f"{leak}: found in the process, and no other named, runs", found, 0.9 * runs, "{:.0f}")
        table.at_least(f"{leak}: with its list or line, runs", named, 0.9 * runs, "{:.0f}")
        if errors:
            table.stated("    bytes a step, largest error", f"{max(errors, key=abs):+.1f} %")
    wrong = sum(any(each["memory_growth"] for each in record(folder, "none", seconds)[1]) for _ in range(2 * runs))
    table.at_most("without a leak: one named, runs", wrong, 0, "{:.0f}")
