"""Rates: how often torchspy reads Python stacks without stops, beside CPython 3.15's own profiler; and 1,000 Hz with stops of many threads."""

import os
import re
import resource
import subprocess
import sys
import tempfile

import profilers
import truth
from targets import ROOT, Failed, Target, program

RATE = 100_000
LEAST_ONE, LEAST_60 = 50_000, 10_000
OPTIONS = ("--nonblocking", "--no-native")
KINDS = ("steady", "calls", "threads")


def python_3_15():
    """The words that run Debian's Python 3.15 from its root, or None."""
    done = subprocess.run([os.path.join(ROOT, "scripts", "sid")], stdout=subprocess.PIPE, text=True)
    root = done.stdout.strip()
    if done.returncode != 0 or not root:
        return None
    loader = os.path.join(root, "lib64", "ld-linux-x86-64.so.2")
    if not os.path.exists(loader):
        return None
    return [loader, "--library-path", os.path.join(root, "usr/lib/x86_64-linux-gnu"), os.path.join(root, "usr/bin/python3.15")]


def folded_stacks(recording, folder):
    """The stacks of all threads, a line each, with the time of each."""
    folded = tempfile.mktemp(suffix=".txt", dir=folder)
    command = [profilers.torchspy_path(), "convert", recording, "--format", "raw", "-o", folded]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(folded, encoding="utf-8") as file:
        return file.read()


def impossible(stacks):
    """Of folded stacks of `calls`: (samples, those that it cannot have). Stacks that are marked as torn do not count."""
    samples = wrong = 0
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        functions = re.findall(r"\b([abc])(\d)\b", re.sub(r"\([^)]*\)|:-?\d+", "", stack))
        if "torn" in stack or "path" not in stack and not functions:
            continue
        letters = "".join(letter for letter, _ in functions)
        is_possible = "path" in stack and "abc".startswith(letters) and len({number for _, number in functions}) < 2
        samples += int(count)
        wrong += 0 if is_possible else int(count)
    return samples, wrong


def cpu_of(run, timeout):
    """Waits for a run; returns the CPU time that it took, seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run.wait(timeout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(table, folder, words, kind, seconds):
    """torchspy on one program."""
    tool = profilers.TorchSpy(folder)
    with Target([*words, program("known_stacks.py"), kind]) as target:
        run = tool.attach(target.pid, seconds, RATE, OPTIONS)
        cpu = cpu_of(run, seconds + 120)
    report = tool.report(run.recording)
    quality = report["quality"]
    read = quality["captures"]["unstopped"] + quality["captures"]["reused"] + quality["captures"]["asleep"]
    note = f" of {RATE}; {100 * cpu / seconds:.0f} % of a core"
    if kind == "threads":
        note += f"; {read / seconds:,.0f} stacks a second"
    least = LEAST_60 if kind == "threads" else LEAST_ONE
    table.at_least(f"{kind}: samples a second", quality["rate_hz"], least, "{:.0f}", note)
    torn = quality["partial"].get("torn", 0)
    table.stated("    said to be torn", f"{100 * torn / max(1, quality['captures']['unstopped']):.2f} % of the stacks that were read")
    if kind == "calls":
        samples, wrong = impossible(folded_stacks(run.recording, folder))
        table.stated("    impossible, and not said to be torn", f"{wrong} of {samples}")


def theirs(table, folder, words, kind, seconds):
    """CPython's own profiler on the same program."""
    folded = tempfile.mktemp(suffix=".txt", dir=folder)
    command = [*words, "-m", "profiling.sampling", "attach", "-r", str(RATE), "-d", str(seconds), "--collapsed", "-o", folded]
    with Target([*words, program("known_stacks.py"), kind]) as target:
        run = profilers.Run([*command, *(["-a"] if kind == "threads" else []), str(target.pid)], folder)
        cpu = cpu_of(run, seconds + 120)
    said = run.said()
    rate, failed = (re.search(rf"{name} rate: ([\d.]+)", said) for name in ("Sample", "Error"))
    if not rate or not failed:
        raise Failed(f"{command}: said neither a rate nor errors\n{said[-1000:]}")
    table.stated(f"{kind}: CPython 3.15's profiler", f"{float(rate[1]):.0f} a second; failed {failed[1]} %; {100 * cpu / seconds:.0f} % of a core")
    if kind == "calls":
        with open(folded, encoding="utf-8") as file:
            samples, wrong = impossible(file.read())
        table.stated("    impossible", f"{wrong} of {samples}")


def with_stops(table, folder, quick):
    """1,000 Hz with stops, within the budget: threads that spin in two functions in turns, and log for how long."""
    tool = profilers.TorchSpy(folder)
    for threads in (8, 64):
        log, report, recording = truth.once(tool, folder, 1000, 4 if quick else 30, ("--threads", str(threads)), ())
        seconds = {"native_one": 0, "native_two": 0}
        everything = 0
        for line in folded_stacks(recording, folder).splitlines():
            stack, _, count = line.rpartition(" ")
            everything += int(count)
            for name in seconds:
                seconds[name] += int(count) if f";{name} (" in stack else 0
        known, true = sum(seconds.values()), log["functions"]
        share, true_share = seconds["native_one"] / known, true["native_one"] / sum(true.values())
        # A stop that is left out is charged to the next one: each capture counts once, for as long
        # as it stands.
        captures = [(stood_s, 1) for stood_s, _ in tool.weights(recording)]
        samples = truth.effective(captures) * known / everything
        error = (true_share * (1 - true_share) / samples) ** 0.5
        table.at_most(
            f"1,000 Hz, {threads} threads on {os.cpu_count()} CPUs: |z| of a share", abs(share - true_share) / error, 3, "{:.2f}",
            f"; {100 * share:.2f} of {100 * true_share:.2f} %, {samples:.0f} equal samples",
        )  # fmt: skip
        quality = report["quality"]
        left_out, stopped = quality["skipped_for_budget"], quality["captures"]["stopped"]
        table.stated("    stopped; stops left out, which is said", f"{100 * quality['stopped_share']:.2f} % of the time; {left_out} of {left_out + stopped}")


def measure(table, folder, quick):
    """All of them."""
    table.heading("Rates: Python stacks without stops, and 1,000 Hz with stops")
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("rates", missing)
        return
    seconds = 2 if quick else 10
    words = python_3_15()
    if not words:
        table.skip("CPython 3.15's profiler", "no Python 3.15 (scripts/sid, as root)")
    for kind in KINDS:
        ours(table, folder, words or [sys.executable], kind, seconds)
        if words:
            theirs(table, folder, words, kind, seconds)
    with_stops(table, folder, quick)
