"""Part job: eight Gloo ranks on two hosts (namespaces, see hosts.py), under torchrun and under Slurm, and four ranks with NCCL on the
simulated node; each rank in a recording of its own, and the clock of half of them off and drifting (planted in the recordings): the
straggler and its line in runs with one, none in runs without, and the clock's error.

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

PORT = "29517"
STEPS = "400"
RUNS = 20


class Gloo:
    """Eight ranks on the CPU, on two hosts or one, by torchrun or by Slurm."""

    ranks, slow = 8, 5
    program = os.path.join(PROGRAMS, "ddp_gloo.py")
    mark = "time.sleep(0.02)"

    def __init__(self, hosts, slurm=False):
        self.hosts, self.slurm = hosts, slurm
        self.name = f"Gloo, {'Slurm' if slurm else 'torchrun'}, {2 if hosts else 1} hosts"

    def environment(self):
        return self.hosts.environment() if self.hosts else None

    def commands(self, torchspy, slow):
        """What starts the job: a command on each host."""
        each = [*torchspy, torch_python(), self.program, "--steps", STEPS, "--slow-rank", slow]
        if self.slurm:
            srun = ["srun", "--nodes", "2", "--ntasks", str(self.ranks), "--ntasks-per-node", str(self.ranks // 2)]
            return [self.hosts.on(0, [*srun, *each])]
        nodes = len(ADDRESSES) if self.hosts else 1
        torchrun = [torch_python(), "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", str(self.ranks // nodes)]
        if not self.hosts:
            return [[*torchrun, "--standalone", *each]]
        torchrun += ["--nnodes", str(nodes), "--master-addr", ADDRESSES[0], "--master-port", PORT]
        return [self.hosts.on(node, [*torchrun, "--node-rank", str(node), *each]) for node in range(nodes)]


class Nccl:
    """Four ranks with NCCL on the simulated node: their hosts run ahead of the devices."""

    ranks, slow, hosts = 4, 2, None
    program = os.path.join(PROGRAMS, "gpu_ranks.py")
    mark = "# mark: slow sleep"
    name = "NCCL, simulated node"

    def environment(self):
        return None

    def commands(self, torchspy, slow):
        node = [os.path.join(ROOT, "scripts", "gpu-sim"), "--gpus", str(self.ranks), "--", torch_python()]
        torchrun = [*node, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks), "--no-python"]
        steps = ["--steps", STEPS, "--slow-ms", "20", "--slow-rank", slow]
        return [[*torchrun, *torchspy, torch_python(), self.program, *steps]]


def record(job, folder, slow):
    """One job; the folder of its recordings."""
    output = tempfile.mkdtemp(dir=folder)
    torchspy = [profilers.torchspy_path(), "record", "-o", os.path.join(output, "{host}-{rank}.tspy"), "--"]
    running = []
    for command in job.commands(torchspy, str(slow)):
        log = tempfile.TemporaryFile("w+")
        running.append((command, log, subprocess.Popen(command, stdout=log, stderr=log, env=job.environment())))
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


def planted_clocks(job, recordings, folder):
    """The answer for these recordings where the second host's clock is off, and the truth of the clocks."""
    planted = tempfile.mkdtemp(dir=folder)
    simulate = os.path.join(ROOT, "scripts", "simulate-job")
    options = ["--from", recordings, "--to", planted, "--ranks", str(job.ranks), "--ranks-per-host", str(job.ranks // 2), "--same"]
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
        measure_job(table, Gloo(None), folder, quick)
    else:
        with Hosts() as hosts:
            measure_job(table, Gloo(hosts), folder, quick)
        why_not = missing(SLURM_TOOLS)
        if why_not:
            print(f"skip: a job of Slurm: {why_not}", flush=True)
        else:
            with Hosts(slurm=True) as hosts:
                measure_job(table, Gloo(hosts, slurm=True), folder, quick)
    measure_job(table, Nccl(), folder, quick)


def measure_job(table, job, folder, quick):
    table.heading(f"all ranks of a job: {job.name}")
    runs = 1 if quick else RUNS
    with open(job.program, encoding="utf-8") as file:
        sleep = next(number for number, line in enumerate(file, 1) if job.mark in line)
    right = wrong = unaligned = 0
    errors, within = [], 0
    for slow in [job.slow, -1] * runs:
        recordings = record(job, folder, slow)
        names = {row["host"] for row in answer_of(recordings)["ranks"]}
        if job.hosts and names != set(NAMES):
            raise Failed(f"hosts of the recordings: {names}")
        answer, truth = planted_clocks(job, recordings, folder)
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
