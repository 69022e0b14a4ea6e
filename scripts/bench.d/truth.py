"""Bar 3: are the shares right? Against a target that logs its own function switches."""

import contextlib
import json
import math
import os
import sys

import profilers
from targets import Failed, Load, program

# Functions of truth.c and the Python functions that do nothing but call them.
NATIVE = {"truth_spin_one": ("native_one", "step_second"), "truth_spin_two": ("native_two",)}


def measured_totals(report, names):
    """Total seconds by function, as the report has them; a function that it lacks has none."""
    totals = dict.fromkeys(names, 0.0)
    for function in report["functions"]:
        name = function["name"].rsplit(".", 1)[-1]
        if name in totals and name not in NATIVE and os.path.basename(function["file"]) == "truth.py":
            totals[name] += function["total_s"]
    for function in report["native_functions"]:
        if function["name"] in NATIVE:
            totals[function["name"]] += function["total_s"]
    return totals


def effective(weights):
    """How many samples of equal weight are as good as these. A look that comes late stands for longer, and tells no more."""
    squares = sum(polls * (seconds / polls) ** 2 for seconds, polls in weights)
    return sum(seconds for seconds, _ in weights) ** 2 / squares if squares else 0


def z_scores(log, report, weights):
    """(z by function, samples): how many standard errors each measured share is off its true one."""
    true = dict(log["functions"])
    whole = sum(true.values())
    measured = measured_totals(report, [*true, *NATIVE])
    sampled = sum(measured[name] for name in true)
    if sampled == 0:
        raise Failed(f"the report names none of {sorted(true)}")
    # Independent samples: jittered ticks do no worse, ticks that alias do.
    samples = effective(weights) * sampled / sum(seconds for seconds, _ in weights)
    for name, callers in NATIVE.items():
        true[name] = sum(log["functions"].get(caller, 0) for caller in callers)
    scores = {}
    for name, seconds in true.items():
        share = seconds / whole
        error = math.sqrt(share * (1 - share) / samples)
        scores[name] = (measured[name] / sampled - share) / error
    return scores, samples


def once(tool, folder, rate, seconds, arguments=(), options=None):
    """One recorded run: its log, its report, and its recording."""
    log_path = os.path.join(folder, f"truth-{rate}.json")
    command = [sys.executable, program("truth.py"), "--seconds", str(seconds), "--log", log_path, *arguments]
    if options is None:
        options = ("--max-stopped", "100") if rate > 100 else ()
    with tool.launch(command, rate, options) as run:
        run.wait(seconds + 120)
    with open(log_path, encoding="utf-8") as file:
        return json.load(file), tool.report(run.recording), run.recording


def measure(table, folder, quick):
    """Bar 3."""
    table.heading("3. Truth (shares against the target's own log; |z| of the worst function)")
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("truth", missing)
        return
    tool = profilers.TorchSpy(folder)
    for loaded in (False,) if quick else (False, True):
        for rate in (100, 1000):
            seconds = 5 if quick else (60 if rate == 100 else 30)
            with Load(os.cpu_count() or 2) if loaded else contextlib.nullcontext():
                log, report, recording = once(tool, folder, rate, seconds)
            scores, samples = z_scores(log, report, tool.weights(recording))
            worst = max(scores, key=lambda name: abs(scores[name]))
            name = f"{rate} Hz, {'loaded' if loaded else 'quiet'} ({samples:.0f} equal samples): {worst}"
            table.at_most(name, abs(scores[worst]), 3, "{:.2f}")
            said = " ".join(f"{name} {score:+.1f}" for name, score in sorted(scores.items()))
            print(f"    z: {said}", flush=True)
