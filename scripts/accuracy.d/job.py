"""Part job: eight Gloo ranks on two hosts (namespaces, see hosts.py), under torchrun and under Slurm, each in a recording of its own, and
the second host's clock off and drifting (planted in the recordings): the straggler and its line in runs with one, none in runs without,
and the clock's error.

The ranks share the CPUs of this machine. The straggler sleeps, so that it does not take them away from others: on as many CPUs as
ranks it might as well compute.
"""

import json
import os
import subprocess
import tempfile

import profilers
from hosts import ADDRESSES, NAMES, SLURM_TOOLS, TOOLS, Hosts, missing
from targets import PROGRAMS, ROOT, Failed, torch_python

PROGRAM = os.path.join(PROGRAMS, "ddp_gloo.py")
RANKS = 8
SLOW = 5
RUNS = 20


def commands(hosts, slurm, program):
    """What starts the job: a command on each host."""
    if slurm:
        srun = ["srun", "--nodes", "2", "--ntasks", str(RANKS), "--ntasks-per-node", str(RANKS // 2)]
        return [hosts.on(0, srun + program)]
    nodes = len(ADDRESSES) if hosts else 1
    torchrun = [torch_python(), "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", str(RANKS // nodes)]
    if not hosts:
        return [[*torchrun, "--standalone", *program]]
    torchrun += ["--nnodes", str(nodes), "--master-addr", ADDRESSES[0], "--master-port", "29517"]
    return [hosts.on(node, [*torchrun, "--node-rank", str(node), *program]) for node in range(nodes)]


def record(hosts, slurm, folder, slow, steps):
    """One job; the folder of its recordings."""
    output = tempfile.mkdtemp(dir=folder)
    torchspy = [profilers.torchspy_path(), "record", "-o", os.path.join(output, "{host}-{rank}.tspy"), "--"]
    program = [*torchspy, torch_python(), PROGRAM, "--slow-rank", str(slow), "--steps", str(steps)]
    running = []
    environment = hosts.environment() if hosts else None
    for command in commands(hosts, slurm, program):
        log = tempfile.TemporaryFile("w+")
        running.append((command, log, subprocess.Popen(command, stdout=log, stderr=log, env=environment)))
    for command, log, process in running:
        status = process.wait(timeout=600)
        log.seek(0)
        if status != 0:
            raise Failed(f"{command}: exit status {status}\n{log.read()[-2000:]}")
        log.close()
    return output


def answer_of(folder):
    done = subprocess.run([profilers.torchspy_path(), "report", folder, "--json"], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise Failed(done.stderr)
    return json.loads(done.stdout)


def planted_clocks(recordings, folder):
    """The answer for these recordings where the second host's clock is off, and the truth of the clocks."""
    planted = tempfile.mkdtemp(dir=folder)
    simulate = os.path.join(ROOT, "scripts", "simulate-job")
    options = ["--from", recordings, "--to", planted, "--ranks", str(RANKS), "--ranks-per-host", str(RANKS // 2), "--same"]
    subprocess.run([simulate, *options, "--offset-ms", "30", "--drift-ppm", "50"], check=True, timeout=600)
    with open(os.path.join(planted, "clocks.json"), encoding="utf-8") as file:
        return answer_of(planted), json.load(file)


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
    why_not = missing(TOOLS)
    if why_not:
        print(f"skip: two hosts: {why_not}; all ranks are on one", flush=True)
        measure_with(table, None, False, folder, quick)
        return
    with Hosts() as hosts:
        measure_with(table, hosts, False, folder, quick)
    why_not = missing(SLURM_TOOLS)
    if why_not:
        print(f"skip: a job of Slurm: {why_not}", flush=True)
        return
    with Hosts(slurm=True) as hosts:
        measure_with(table, hosts, True, folder, quick)


def measure_with(table, hosts, slurm, folder, quick):
    table.heading(f"all ranks of a job: {'Slurm' if slurm else 'torchrun'}, {2 if hosts else 1} hosts")
    runs, steps = (1, 400) if quick else (RUNS, 400)
    with open(PROGRAM, encoding="utf-8") as file:
        sleep = next(number for number, line in enumerate(file, 1) if "time.sleep(0.02)" in line)
    right = wrong = unaligned = 0
    errors, within = [], 0
    for slow in [SLOW, -1] * runs:
        recordings = record(hosts, slurm, folder, slow, steps)
        names = {row["host"] for row in answer_of(recordings)["ranks"]}
        if hosts and names != set(NAMES):
            raise Failed(f"hosts of the recordings: {names}")
        answer, truth = planted_clocks(recordings, folder)
        late = [each for group in answer["groups"] for each in group["stragglers"]]
        if slow < 0:
            wrong += bool(late)
        else:
            named = [each["rank"] for each in late] == [slow]
            right += named and late[0]["lines"][0]["line"] == sleep
        error = clock_error_ms(answer, truth)
        print(f"  slow {slow}: {[each['rank'] for each in late]}, clock's error in ms and stated: {error}", flush=True)
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
