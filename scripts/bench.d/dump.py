"""The bars of `dump`: how long a look at 160 threads takes, and how long it stops each."""

import json
import subprocess
import time

import profilers
from figures import median, quantile
from targets import Failed, Target, torch_python


def look(pid, *options):
    """One dump: seconds from start to end, and its JSON."""
    begin = time.monotonic()
    done = subprocess.run([profilers.torchspy_path(), "dump", "--json", "--pid", str(pid), *options], capture_output=True, text=True, timeout=60)
    spent = time.monotonic() - begin
    if done.returncode != 0:
        raise Failed(f"dump: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return spent, json.loads(done.stdout)["looks"][0]


def measure(table, folder, quick):
    """Issue 5, bar 1."""
    table.heading("dump of a torch script with about 160 threads")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("dump", missing)
        return
    looks = 5 if quick else 60
    with Target.python("many_threads.py", python=python) as target:
        target.go(f"for {20 if quick else 180}")
        look(target.pid)
        found = [look(target.pid) for _ in range(looks)]
    stops = [stop for _, each in found for stop in each["stops_us"]]
    threads = len(found[-1][1]["processes"][0]["threads"])
    unread = sum(1 for _, each in found for thread in each["processes"][0]["threads"] if not thread["frames"])
    table.at_most(f"start to end, {threads} threads: median of {looks}", 1000 * median([spent for spent, _ in found]), 300, "{:.0f} ms")
    table.stated("    longest", f"{1000 * max(spent for spent, _ in found):.0f} ms")
    table.at_most(f"stop of a running thread, p99 of {len(stops)}", quantile(stops, 0.99), 250, "{:.0f} us")
    table.stated("    p50 / max", f"{quantile(stops, 0.5):.0f} / {max(stops, default=0):.0f} us")
    table.stated("    first to last thread: median", f"{median([each['skew_ms'] for _, each in found]):.1f} ms")
    table.stated("    threads without a stack", f"{unread} of {threads * looks}")
