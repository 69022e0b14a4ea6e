"""The bars of `dump`: how long a look at 160 threads takes, and how long it stops each."""

import json
import os
import signal
import subprocess
import time

import profilers
from figures import median, quantile
from targets import Failed, Target, program, torch_python

RANKS = 8
# What the last rank hangs in, and the mark of its line in hang_ranks.py.
HANGS = {"python": "python", "lock": "lock", "worker": "loop", "gil": "gil"}


def snapshot(pid, *options):
    """One dump: seconds from start to end, and its JSON."""
    begin = time.monotonic()
    done = subprocess.run([profilers.torchspy_path(), "dump", "--json", "--pid", str(pid), *options], capture_output=True, text=True, timeout=60)
    spent = time.monotonic() - begin
    if done.returncode != 0:
        raise Failed(f"dump: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return spent, json.loads(done.stdout)["looks"][0]


def line_of(mark):
    """The number of the line of hang_ranks.py that carries a mark."""
    with open(program("hang_ranks.py"), encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.endswith(f"# mark: {mark}\n"))


def ends_in(python, how):
    """Whether a dump of all ranks names the last, where it hangs, and what the others wait for; and how long the dump takes."""
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), program("hang_ranks.py"), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}) as job:
        try:
            for _ in range(RANKS):
                if not job.stdout.readline().startswith(b"ready"):
                    raise Failed(f"{how}: the ranks did not start")
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                spent, seen = snapshot(job.pid, "--tree")
                last = next((each for each in seen["processes"] if each["rank"] == RANKS - 1), None)
                if last is None or seen["awaited"] != [last["pid"]]:
                    continue
                at = last["threads"][0]["at"]["line"]
                waiting = [group for group in seen["ranks"] if group["waits_for_ranks"]]
                if at == line_of(HANGS[how]) and len(waiting) == 1:
                    return spent, len(seen["processes"]), waiting[0]["doing"]
            raise Failed(f"{how}: no dump named the rank: {json.dumps(seen.get('ranks'))[:2000]}")
        finally:
            job.send_signal(signal.SIGKILL)


def ranks(table, python):
    """Each of the four ways to hang."""
    table.heading(f"dump --tree of {RANKS} Gloo ranks under torchrun, of which the last hangs")
    for how in HANGS:
        spent, processes, doing = ends_in(python, how)
        table.at_least(f"in {how}: named, with its line, and the others wait ({doing})", 1, 1, "{:.0f}")
        table.stated("    start to end", f"{1000 * spent:.0f} ms, {processes} processes")


def measure(table, folder, quick):
    """Issue 5, bar 1."""
    table.heading("dump of a torch script with about 160 threads")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("dump", missing)
        return
    snapshots = 5 if quick else 60
    with Target.python("many_threads.py", python=python) as target:
        target.go(f"for {20 if quick else 180}")
        snapshot(target.pid)
        found = [snapshot(target.pid) for _ in range(snapshots)]
    stops = [stop for _, each in found for stop in each["stops_us"]]
    threads = len(found[-1][1]["processes"][0]["threads"])
    missing = sum(1 for _, each in found for thread in each["processes"][0]["threads"] if not thread["frames"])
    table.at_most(f"start to end, {threads} threads: median of {snapshots}", 1000 * median([spent for spent, _ in found]), 300, "{:.0f} ms")
    table.stated("    longest", f"{1000 * max(spent for spent, _ in found):.0f} ms")
    table.at_most(f"stop of a running thread, p99 of {len(stops)}", quantile(stops, 0.99), 250, "{:.0f} us")
    table.stated("    p50 / max", f"{quantile(stops, 0.5):.0f} / {max(stops, default=0):.0f} us")
    table.stated("    first to last thread: median", f"{median([each['skew_ms'] for _, each in found]):.1f} ms")
    table.stated("    threads without a stack", f"{missing} of {threads * snapshots}")
    if quick:
        table.skip(f"dump --tree of {RANKS} ranks", "quick form; tests/torch/dump.rs has two ranks")
    else:
        ranks(table, python)
