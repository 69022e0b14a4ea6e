"""Where torchspy's own CPU time goes beside 160 threads, by perf: what each tick costs, activity by activity. Run only where it is named."""

import collections
import os
import re
import shutil
import subprocess
import time

import profilers
from own import cpu_seconds
from targets import Failed, Target, torch_python

RATE = 100
# The innermost function of a stack that one of these names says what a thread did, by thread.
ACTIVITIES = {
    "torchspy-trace": [
        ("which threads ran (schedstat)", "schedstat"),
        ("where sleepers are (syscall, stat)", "whereabouts|ThreadFiles::stat|voluntary_switches|is_stopped"),
        ("which pages are there (pagemap)", "read_table"),
        ("sleepers that sleep on: what their stacks were found in", "sleeps_as_before|Footprint|has_last_stack"),
        ("code objects", "code_copies"),
        ("stacks of stopped and sleeping threads: reading", "capture_stopped|capture_asleep|read_stopped|capture::copy"),
        ("stops: request, wait, resume", "LateStops|Interrupting|StoppedThread"),
        ("states of Python's threads", "match_python_threads"),
        ("waiting for the next tick", "clock_nanosleep|schedule::"),
        ("own priority and CPU", "priority|wake_cpu|placement"),
    ],
    "torchspy-work": [
        ("unwinding", "native::"),
        ("counters of progress", "ProgressProbe|progress::"),
        ("modules of torch.nn, ranks, groups", "torch::"),
        ("Python frames and names", "python::"),
        ("merging", "merge"),
        ("segments", "segments|segment_of|compact"),
        ("waiting for the tracer", "crossbeam_channel"),
    ],
    "torchspy-write": [("compressing and writing", ".")],
    "torchspy-keep": [("processes: which started, ended, called exec", ".")],
    "torchspy-host": [("counters of the host", ".")],
    "torchspy-syms": [("symbol tables", ".")],
}
THREADS = {"torchspy-trace": "tracer", "torchspy-work": "worker"}


def activity(thread, stack):
    """What a thread did, by its stack, innermost function first."""
    rows = ACTIVITIES.get(thread)
    if rows is None:
        return "other threads"
    for function in stack:
        for name, pattern in rows:
            if re.search(pattern, function):
                return name
    return f"the rest of the {THREADS.get(thread, thread)}"


def sampled(pid, seconds, path):
    """Samples of the process by activity."""
    record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4999", "--call-graph", "dwarf,8192", "-p", str(pid), "-o", path]
    done = subprocess.run([*record, "--", "sleep", f"{seconds:g}"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"perf record: exit status {done.returncode}\n{done.stderr[-2000:]}")
    script = ["perf", "script", "-i", path, "-F", "comm,ip,sym", "--no-inline"]
    counts, thread, stack = collections.Counter(), None, []
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        for line in running.stdout:
            if not line.strip():
                if thread:
                    counts[activity(thread, stack)] += 1
                thread, stack = None, []
            elif line[0].isspace():
                stack.append(line.strip().partition(" ")[2])
            else:
                thread = line.strip()
    if not counts:
        raise Failed("perf has no samples of torchspy")
    return counts


def measure(table, folder, quick):
    """Issue 23, part 2: a breakdown."""
    table.heading(f"own CPU time by activity ({RATE} Hz, about 160 threads, 20 short-lived ones a second)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing or not shutil.which("perf"):
        table.skip("breakdown", missing or "no perf")
        return
    warm_up, seconds = (3, 3) if quick else (20, 20)
    tool = profilers.TorchSpy(folder)
    with Target.python("many_threads.py", "--churn", 20, python=python) as target:
        target.go(f"for {warm_up + 2 * seconds + 60}")
        with tool.attach(target.pid, warm_up + 2 * seconds + 30) as run:
            pid = run.process.pid
            time.sleep(warm_up)
            cpu, since = cpu_seconds(pid), time.monotonic()
            time.sleep(seconds)
            share = (cpu_seconds(pid) - cpu) / (time.monotonic() - since)
            # perf slows torchspy down: only its shares are taken.
            counts = sampled(pid, seconds, os.path.join(folder, "own.perf"))
    table.stated("all of it", f"{100 * share:.1f} % of a core, {1e6 * share / RATE:.0f} us a tick")
    total = sum(counts.values())
    for name, count in counts.most_common():
        part = count / total
        if part >= 0.005:
            table.stated(f"    {name}", f"{100 * part:.1f} %, {1e6 * share * part / RATE:.0f} us a tick")
