"""Bars 5 and 6: what torchspy itself costs: CPU, memory, time to the first sample, bytes, time to report."""

import os
import subprocess
import time

import profilers
from figures import median
from targets import Failed, Target, torch_python

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """User and system time of a process so far, of all its threads."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def memory_mb(pid):
    """(RSS less pages shared with others, anonymous pages, RSS), MB."""
    sizes = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if rest.strip().endswith("kB"):
                sizes[name] = int(rest.split()[0]) * 1024 / 1e6
    if "Private_Clean" not in sizes:
        raise Failed(f"process {pid} ended before its memory was read")
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Anonymous"], sizes["Rss"]


def first_sample_ms(tool, python):
    """From the start of the tool to the first stop that a spinning thread of a torch process feels, ms."""
    with Target.python("probe.py", "--torch", "--sleepers", 4, python=python) as target:
        target.go()
        with tool.attach(target.pid, 1) as run:
            run.wait(60)
            target.signal()
            result = target.read_json()
            felt = [gap[0] for gap in result["gaps"] if gap[2] and gap[0] >= run.started_ns]
            if not felt:
                raise Failed(f"the probe felt no stop under {tool.name}")
            return (felt[0] - run.started_ns) / 1e6


def attach_time(table, mine, folder, python, quick):
    """Time to the first sample; the first run only warms the page cache."""
    count = 1 if quick else 5
    found = [first_sample_ms(mine, python) for _ in range(count + 1)][1:]
    table.at_most("first sample after start, torch loaded: median", median(found), 100, "{:.0f} ms")
    pyspy = profilers.pyspy_path()
    if pyspy and not quick:
        for native in (False, True):
            tool = profilers.PySpy(folder, pyspy, native)
            table.stated(f"    {tool.name}", f"{first_sample_ms(tool, python):.0f} ms")


def long_run(table, tool, python, seconds):
    """One recording of (b) with thread churn: the Run, its CPU in percent of a core, and its memory near the end."""
    with Target.python("many_threads.py", "--churn", 20, python=python) as target:
        target.go(f"for {seconds + 20}")
        with tool.attach(target.pid, seconds) as run:
            pid = run.process.pid
            # Reading symbols at the start is no part of the steady state.
            warm_up = min(5, seconds / 3)
            time.sleep(warm_up)
            cpu, since = cpu_seconds(pid), time.monotonic()
            # A moment before its end, while it still is as large as it gets.
            time.sleep(max(0, run.started_ns / 1e9 + seconds - 0.5 - since))
            share = 100 * (cpu_seconds(pid) - cpu) / (time.monotonic() - since)
            memory = memory_mb(pid)
            run.wait(120)
    return run, share, memory


def measure(table, folder, quick):
    """Bars 5 and 6."""
    table.heading("5. and 6. torchspy's own cost (100 Hz, about 160 threads, 20 short-lived ones a second)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("own cost", missing)
        return
    mine = profilers.TorchSpy(folder)
    attach_time(table, mine, folder, python, quick)
    seconds = 8 if quick else 600
    run, cpu, (private, anonymous, rss) = long_run(table, mine, python, seconds)
    table.at_most(f"CPU over {seconds} s", cpu, 6, "{:.1f} %", " of a core")
    table.at_most(f"own memory after {seconds} s", private, 120, "{:.0f} MB")
    table.stated("    anonymous / RSS", f"{anonymous:.0f} / {rss:.0f} MB")
    recorded(table, run.recording, seconds, folder)
    pyspy = profilers.pyspy_path()
    if pyspy and not quick:
        tool = profilers.PySpy(folder, pyspy, native=True)
        _, cpu, (private, _, rss) = long_run(table, tool, python, 30)
        table.stated("py-spy --native: CPU / own memory / RSS, 30 s", f"{cpu:.0f} % / {private:.0f} / {rss:.0f} MB")


def recorded(table, recording, seconds, folder):
    """Size of the recording, and the time to report and convert it."""
    size = os.path.getsize(recording) / 1e6
    table.at_most(f"recording per minute (of {size:.2f} MB in {seconds} s)", size * 60 / seconds, 2, "{:.2f} MB")
    for name, arguments in (
        ("report --full", ["report", "--full", recording]),
        ("convert to .svg", ["convert", recording, "--force", "-o", os.path.join(folder, "long.svg")]),
        ("convert to .speedscope.json", ["convert", recording, "--force", "-o", os.path.join(folder, "long.speedscope.json")]),
    ):
        begin = time.monotonic()
        done = subprocess.run([profilers.torchspy_path(), *arguments], capture_output=True, text=True, timeout=300)
        spent = time.monotonic() - begin
        if done.returncode != 0:
            raise Failed(f"{arguments}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        table.at_most(f"{name}, {seconds} s of recording", spent, 2, "{:.2f} s")
