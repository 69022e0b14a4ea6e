"""Part 7: `torchspy diff`. A slowdown planted into one module is found and named; equal runs do not differ beyond their intervals.

The target (tests/programs/train_planted.py) measures what was planted itself. Runs of A and of B take turns. Machines change
from one run to the next, and only a quiet one can be judged by: what the script itself measured stands beside each verdict.
Environment: TORCHSPY_DIFF_SECONDS (of a run, default 60), TORCHSPY_DIFF_TRIES (pairs of equal runs, default 10).
"""

import json
import os
import subprocess

import profilers
from targets import Failed, Target, program, torch_python

PROGRAM = "train_planted.py"
SHARE = 0.05
MODULE = "Net.layers.2"
RATE = 100


def compared(*arguments):
    """`torchspy diff --json`."""
    done = subprocess.run([profilers.torchspy_path(), "diff", "--json", *arguments], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Failed(f"diff {arguments}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def planted(python):
    """How many multiplications make a step five percent longer, by the target's own measurement."""
    done = subprocess.run([python, program(PROGRAM), "--calibrate", str(SHARE)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Failed(f"{PROGRAM} --calibrate: {done.stderr[-2000:]}")
    return json.loads(done.stdout)["extra"]


def recorded(tool, python, seconds, extra=0):
    """A run: (its recording, what it measured itself)."""
    with Target.python(PROGRAM, "--seconds", seconds, "--extra", extra, python=python) as target:
        with tool.attach(target.pid, rate=RATE) as run:
            target.go()
            said = target.read_json(seconds * 3 + 60)
            run.wait(120)
    return run.recording, said


def step_text(diff):
    """The step's difference as the report has it, with its interval."""
    step = diff["step"]
    if step is None:
        return "no steps known"
    return f"{100 * step['relative']:+.1f} % ±{100 * step['relative_half']:.1f} ({step['verdict']})"


def true_text(a, b):
    """The same by the target's own clock."""
    return f"itself {100 * (b['step_ms'] / a['step_ms'] - 1):+.1f} %"


def beyond(diff):
    """What the report says differs."""
    named = [f"{part['kind']} {part['name']}" for part in diff["parts"] if part["beyond_noise"]]
    step = diff["step"] is not None and diff["step"]["beyond_noise"]
    return (["the step"] if step else []) + named


def find_planted(table, tool, python, seconds, extra):
    """Bar 7, first half."""
    (a, of_a), (b, of_b) = recorded(tool, python, seconds), recorded(tool, python, seconds, extra)
    diff = compared(a, b)
    carrier = diff["carrier"]
    module = next((part for part in diff["parts"] if (part["kind"], part["name"]) == ("module", MODULE)), None)
    name = f"planted {100 * of_b['extra_ms'] / of_a['step_ms']:.1f} % into {MODULE}"
    table.stated(f"{name}: the step", step_text(diff))
    print(f"    {true_text(of_a, of_b)}; {of_a['steps']} and {of_b['steps']} steps")
    table.at_least("    it is called slower", int(module is not None and module["verdict"] in ("slower", "larger share")), 1, "{:.0f}")
    table.at_least("    it is what carries the difference", int(carrier is not None and carrier["name"] == MODULE), 1, "{:.0f}")
    if module is not None:
        off = 1000 * module["difference_s"] - of_b["extra_ms"]
        measured = f"{1000 * module['difference_s']:+.2f} ±{1000 * module['half_s']:.2f} ms"
        table.stated("    its difference, and off the target's own figure", f"{measured}, {off:+.2f}")


def equal_runs(table, tool, python, seconds, tries):
    """Bar 7, second half; returns the recordings of both sides."""
    sides, quiet, apart = ([], []), 0, []
    for number in range(tries):
        (a, of_a), (b, of_b) = recorded(tool, python, seconds), recorded(tool, python, seconds)
        sides[0].append(a)
        sides[1].append(b)
        diff = compared(a, b)
        called = beyond(diff)
        quiet += not called
        apart.append(abs(of_b["step_ms"] / of_a["step_ms"] - 1))
        print(f"    try {number + 1}: {step_text(diff)}; {true_text(of_a, of_b)}; {', '.join(called[:4]) or 'nothing differs'}", flush=True)
    table.at_least(f"equal runs without a difference, of {tries}", quiet, round(0.9 * tries), "{:.0f}")
    table.stated("    their steps differed by the target's own clock", f"up to {100 * max(apart):.1f} %")
    return sides


def pooled(table, sides):
    """The same recordings, several a side."""
    count = min(3, len(sides[0]))
    if count < 2:
        return
    diff = compared("--a", *sides[0][:count], "--b", *sides[1][:count])
    called = beyond(diff)
    scatter = 100 * diff["run_to_run"]["relative"]
    table.stated(f"pooled, {count} and {count} of them", f"{step_text(diff)}")
    print(f"    run to run {scatter:.1f} %; {', '.join(called[:6]) or 'nothing differs'}")


def measure(table, folder, quick):
    """Planted and equal runs."""
    table.heading("7. Did it help? (two recordings compared)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("diff", missing)
        return
    seconds = float(os.environ.get("TORCHSPY_DIFF_SECONDS", 5 if quick else 60))
    tries = int(os.environ.get("TORCHSPY_DIFF_TRIES", 1 if quick else 10))
    tool = profilers.TorchSpy(folder)
    extra = planted(python)
    find_planted(table, tool, python, seconds, extra)
    pooled(table, equal_runs(table, tool, python, seconds, tries))
