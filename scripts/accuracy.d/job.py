"""Part job: eight Gloo ranks under torchrun, each in a recording of its own, of which four become another host whose clock is off and
drifts (planted in the recordings): the straggler and its line in runs with one, none in runs without, and the clock's error.

The ranks share the CPUs of this machine. The straggler sleeps, so that it does not take them away from others: on as many CPUs as
ranks it might as well compute.
"""

import json
import os
import subprocess
import tempfile

import profilers
from targets import PROGRAMS, ROOT, Failed, torch_python

PROGRAM = os.path.join(PROGRAMS, "ddp_gloo.py")
RANKS = 8
SLOW = 5
RUNS = 20


def record(python, folder, slow, steps):
    """One job; the folder of its recordings."""
    output = tempfile.mkdtemp(dir=folder)
    torchspy = [profilers.torchspy_path(), "record", "-o", os.path.join(output, "{rank}.tspy"), "--"]
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--no-python", *torchspy]
    command += [python, PROGRAM, "--slow-rank", str(slow), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise Failed(f"{command}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return output


def report(recordings, folder):
    """The answer for these recordings on two hosts, and the truth of their clocks."""
    planted = tempfile.mkdtemp(dir=folder)
    simulate = os.path.join(ROOT, "scripts", "simulate-job")
    options = ["--from", recordings, "--to", planted, "--ranks", str(RANKS), "--ranks-per-host", str(RANKS // 2), "--same"]
    subprocess.run([simulate, *options, "--offset-ms", "30", "--drift-ppm", "50"], check=True, timeout=600)
    done = subprocess.run([profilers.torchspy_path(), "report", planted, "--json"], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise Failed(done.stderr)
    with open(os.path.join(planted, "clocks.json"), encoding="utf-8") as file:
        return json.loads(done.stdout), json.load(file)


def clock_error_ms(answer, truth):
    """By how much the second host's clock is off in the middle of the run, and the stated error; None if it is not aligned."""
    clock = next(row for row in answer["clocks"] if row["aligned_by"] != "reference")
    planted = next(row for row in truth if row["host"] == clock["host"])
    reference = next(row for row in truth if row["host"] != clock["host"])
    if clock["ahead_ms"] is None:
        return None
    at_s = (clock["middle_ns"] - planted["origin_wall_ns"]) / 1e9

    def ahead(row):
        return row["ahead_at_start_ms"] + row["drift_ppm"] * 1e-3 * at_s

    return abs(clock["ahead_ms"] - (ahead(planted) - ahead(reference))), clock["error_ms"]


def measure(table, folder, quick):
    table.heading("all ranks of a job")
    python = torch_python()
    runs, steps = (2, 150) if quick else (RUNS, 400)
    with open(PROGRAM, encoding="utf-8") as file:
        sleep = next(number for number, line in enumerate(file, 1) if "time.sleep(0.02)" in line)
    right = wrong = unaligned = 0
    errors, within = [], 0
    for slow in [SLOW, -1] * runs:
        answer, truth = report(record(python, folder, slow, steps), folder)
        late = [each for group in answer["groups"] for each in group["stragglers"]]
        if slow < 0:
            wrong += bool(late)
        else:
            named = [each["rank"] for each in late] == [slow]
            right += named and late[0]["lines"][0]["line"] == sleep
        error = clock_error_ms(answer, truth)
        if error is None:
            unaligned += 1
        else:
            errors.append(error[0])
            within += error[0] <= error[1]
    table.at_least("the straggler and its line, runs", right, runs, "{:.0f}")
    table.at_most("a straggler where there is none, runs", wrong, 0, "{:.0f}")
    table.at_most("clock: largest error, ms", max(errors, default=float("inf")), 1.0)
    table.at_most("clock: not aligned, runs", unaligned, 0, "{:.0f}")
    table.stated("clock: within the stated 95 % interval", f"{within} of {len(errors)}")
