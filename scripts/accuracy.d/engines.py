"""Part engines: the shares of `--engine perf` against those of `--engine ptrace`, of the same process at the same time.

Perf events need no attachment, so that both engines can record one process: what it does by chance is in both recordings alike. Which engine
starts first alternates, and both are reported over the time that both have.

A share of so many captures scatters. The standard error of a difference, printed beside it, is that of two independent multinomial samples of as
many captures of equal weight; as steps last many ticks it is an upper bound, and the one beside it comes from how the recordings differ. Where a
share is beyond the limit by less than two standard errors, more is recorded.
"""

import contextlib
import json
import math
import os
import re
import statistics
import subprocess

import openmp
import phases
import profilers
import recorded
import truth
from targets import Failed, Target, torch_python

ENGINES = ("ptrace", "perf")
# How the captures of running threads are called.
METHODS = {"ptrace": "stopped", "perf": "sampled"}
# Stops of that rate are well within the default of --max-stopped.
RATE = 200
PLANTED = "planted phases"
# Name, program, arguments, whether it ends at a line on its stdin and writes a log.
TARGETS = (
    ("CNN", "train_cnn.py", ("--hold", "--omp", 1, "--workers", 0), False),
    ("GPT", "openmp_truth.py", ("--work", "gpt", "--threads", 1), True),
    ("DDP", "openmp_truth.py", ("--work", "ddp", "--threads", 1), True),
    (PLANTED, "planted_phases.py", (), True),
)
RECORDINGS, SECONDS = 6, 40
# Points; and percent of the time from which an activity is compared, of captures that have to be
# merged.
LIMIT, LEAST_SHARE, LEAST_MERGED = 1.0, 1.0, 99.0
DOCTOR = re.compile(r"^(\w+) +perf events +(.*)$", re.M)
STACK = re.compile(r"^  S\d+ [\d.]+ s, \d+ samples, \d+ ticks:(.*)\n((?:    .*\n)+)", re.M)
# As in the report's `merged_share`.
NOT_MERGED = {"python_unreadable", "merge_mismatch", "unknown_python", "code_gone", "python_pending"}


def no_perf_events():
    """Why the kernel may not sample all that a thread does, or None."""
    done = subprocess.run([profilers.torchspy_path(), "doctor"], capture_output=True, text=True, timeout=60)
    found = DOCTOR.search(done.stdout)
    if not found:
        return f"torchspy doctor does not mention perf events: {(done.stdout + done.stderr)[-300:]!r}"
    return None if found[1] == "ok" else f"perf events: {found[2]}"


def merged(text, method):
    """(captures of Python threads whose leaf is native, those of them in which Python frames were merged) in a dump."""
    native = whole = 0
    for kinds, frames in STACK.findall(text):
        count = sum(int(count) for count, how in re.findall(r"(\d+) \w+/(\w+)", kinds) if how == method)
        lines = [line[4:] for line in frames.splitlines()]
        python = any(line.startswith("py ") for line in lines)
        lacks = any(line.startswith("?? ") and line[3:] in NOT_MERGED for line in lines)
        if lines[-1].startswith("na ") and (python or lacks):
            native += count
            whole += count if python and not lacks else 0
    return native, whole


def captures(samples, begin_ns, end_ns):
    """How many captures of equal weight are as good as a thread's; ticks that are known to have shown the same are captures, too."""
    inside = [sample for sample in samples if begin_ns <= sample.start_ns < end_ns and sample.capture != "unread"]
    looks = [max(1, sample.ticks) if sample.capture == "reused" else 1 for sample in inside]
    return truth.effective([((sample.end_ns - sample.start_ns) / 1e9, count) for sample, count in zip(inside, looks)])


def trainers(report):
    """The processes that train, by pid."""
    return {each["pid"]: each for each in report["processes"] if each["role"] == "trainer" and each["training_tid"]}


class Both:
    """One recording of each engine, of the same process and its children: shares by pid over the time that both have, and what is said of the captures."""

    def __init__(self, tools, recordings):
        dumps = {engine: recorded.Dump(path) for engine, path in recordings.items()}
        reports = {engine: tools[engine].report(path) for engine, path in recordings.items()}
        self.quality = {engine: report["quality"] for engine, report in reports.items()}
        self.merged = {engine: merged(dump.text, METHODS[engine]) for engine, dump in dumps.items()}
        tids = [{pid: each["training_tid"] for pid, each in trainers(report).items()} for report in reports.values()]
        if not tids[0] or tids[0] != tids[1]:
            raise Failed(f"the engines report different training threads: {tids}")
        self.tids = tids[0]
        samples = {(engine, pid): dump.samples(tid) for engine, dump in dumps.items() for pid, tid in self.tids.items()}
        if not all(samples.values()):
            raise Failed(f"a training thread was not sampled: {self.tids}")
        self.begin_ns = max(each[0].start_ns for each in samples.values())
        self.end_ns = min(each[-1].end_ns for each in samples.values())
        if self.begin_ns >= self.end_ns:
            raise Failed("the engines did not record at the same time")
        self.captures = {key: captures(each, self.begin_ns, self.end_ns) for key, each in samples.items()}
        self.shares = {}
        for engine, path in recordings.items():
            begin, end = (f"{max(1, moment - dumps[engine].start_ns) / 1e9:.9f}" for moment in (self.begin_ns, self.end_ns))
            cut = trainers(tools[engine].report(path, "--from", begin, "--to", end))
            for pid in self.tids:
                self.shares[(engine, pid)] = {
                    (axis, name): 100 * share for axis in ("phases", "activities") for name, share in cut[pid][axis].items()
                }


def record(tools, pid, seconds, number):
    """Both engines on one process; the first of them is ptrace in every other recording."""
    order = ENGINES if number % 2 == 0 else ENGINES[::-1]
    with contextlib.ExitStack() as stack:
        runs = {engine: stack.enter_context(tools[engine].attach(pid, duration=seconds, rate=RATE)) for engine in order}
        for run in runs.values():
            run.wait(seconds + 120)
    return Both(tools, {engine: runs[engine].recording for engine in ENGINES})


class Compared:
    """A share by both engines, in percent, over all recordings."""

    def __init__(self, found, pid, key):
        by_engine = {engine: [both.shares[(engine, pid)].get(key, 0.0) for both in found] for engine in ENGINES}
        self.key = key
        self.shares = {engine: statistics.mean(shares) for engine, shares in by_engine.items()}
        off = [perf - ptrace for ptrace, perf in zip(by_engine["ptrace"], by_engine["perf"])]
        self.off = statistics.mean(off)
        self.spread = statistics.stdev(off) / math.sqrt(len(off)) if len(off) > 1 else math.nan
        self.error = math.hypot(*(self.error_of(found, pid, engine) for engine in ENGINES))

    def error_of(self, found, pid, engine):
        """The standard error of one engine's share."""
        # Of both, so that a share which one of them did not see has one.
        share = statistics.mean(self.shares.values())
        return recorded.standard_error(share, sum(both.captures[(engine, pid)] for both in found))

    def matters(self):
        """Whether it is compared: phases all."""
        most = max(self.shares.values())
        return most >= LEAST_SHARE if self.key[0] == "activities" else most > 0


def compared(found, pid):
    """Every share of a process that is compared, the largest first."""
    keys = {key for both in found for engine in ENGINES for key in both.shares[(engine, pid)]}
    shares = [each for each in (Compared(found, pid, key) for key in keys) if each.matters()]
    return sorted(shares, key=lambda each: (each.key[0] != "phases", -max(each.shares.values()), each.key))


def is_open(found):
    """Whether chance alone may have put a share beyond the limit."""
    return any(recorded.is_open(abs(each.off), each.error, LIMIT) for pid in found[-1].tids for each in compared(found, pid))


def true_shares(name, log, both):
    """Shares by the script's own clock, in percent, as `Both.shares` has them. DDP's `backward` has its communication within."""
    if name == PLANTED:
        shares = phases.truth(log["switches"], both.begin_ns, both.end_ns)
        return {phases.PLANTED[each]: 100 * share for each, share in shares.items()}
    return {("phases", phase): share for phase, share in openmp.phase_shares(log["switches"], both.begin_ns, both.end_ns).items()}


def record_target(tools, folder, python, target, count, seconds, more):
    """The recordings of one training, and its logs by tid."""
    name, program, arguments, logs = target
    path, found = os.path.join(folder, "engines.json"), []
    more_arguments = ("--log", path) if logs else ()
    with Target.python(program, *arguments, *more_arguments, python=python, timeout=600) as running:
        while len(found) < count or (more and len(found) < 2 * count and is_open(found)):
            # DDP's parent has both ranks below it.
            found.append(record(tools, running.process.pid, seconds, len(found)))
        if logs:
            running.go()
            running.read_line(600)
    written = {}
    for each in sorted(os.listdir(folder)):
        if each.startswith("engines.json"):
            with open(os.path.join(folder, each), encoding="utf-8") as file:
                log = json.load(file)
            written[log["tid"]] = log
            os.unlink(os.path.join(folder, each))
    return found, written


def judge_shares(table, label, found, pid, true):
    """The rows of one process, and every share of it; `true` is what its own log says, if it has one."""
    shares = compared(found, pid)
    for axis in ("phases", "activities"):
        of_axis = [each for each in shares if each.key[0] == axis]
        if not of_axis:
            raise Failed(f"{label}: no {axis} in the report")
        worst = max(of_axis, key=lambda each: abs(each.off))
        what = f"{label}: {axis}, perf off ptrace, most in {worst.key[1]}"
        table.at_most(what, abs(worst.off), LIMIT, "{:.2f}", f" points, standard error {worst.error:.2f}")
    beyond = [each.key[1] for each in shares if abs(each.off) > LIMIT + 2 * each.error]
    table.stated(f"    beyond {LIMIT:g} point and two standard errors, of {len(shares)}", ", ".join(beyond) or "none")
    print(f"    {'%':<28}{'ptrace':>9}{'perf':>9}{'off':>8}{'error':>8}{'seen':>8}{'true':>9}")
    for each in shares:
        figures = f"{each.shares['ptrace']:>9.2f}{each.shares['perf']:>9.2f}{each.off:>+8.2f}{each.error:>8.2f}{each.spread:>8.2f}"
        print(f"    {each.key[0] + ' ' + each.key[1]:<28}{figures}" + (f"{true[each.key]:>9.2f}" if each.key in true else ""))
    counts = ", ".join(f"{engine} {sum(both.captures[(engine, pid)] for both in found):.0f}" for engine in ENGINES)
    print(f"    captures of equal weight: {counts}, in {len(found)} recordings", flush=True)


def judge_truth(table, label, found, pid, true):
    """Planted phases: each engine against the log."""
    for engine in ENGINES:
        shares = {key: statistics.mean(both.shares[(engine, pid)].get(key, 0.0) for both in found) for key in true}
        worst = max(true, key=lambda key: abs(shares[key] - true[key]))
        error = recorded.standard_error(true[worst], sum(both.captures[(engine, pid)] for both in found))
        off = abs(shares[worst] - true[worst])
        table.at_most(f"{label}: {engine} off the log, most in {worst[1]}", off, LIMIT, "{:.2f}", f" points, standard error {error:.2f}")


def judge_captures(table, name, found):
    """What was read of running threads."""
    for engine in ENGINES:
        native, whole = (sum(counts) for counts in zip(*(both.merged[engine] for both in found)))
        label = f"{name}: {engine}, merged, of captures with a native leaf"
        share = 100 * whole / native if native else math.nan
        if engine == "perf":
            table.at_least(label, share, LEAST_MERGED, "{:.2f} %", f" of {native}")
        else:
            table.stated(label, f"{share:.2f} % of {native}")
    total = {key: sum(both.quality["perf"][key] for both in found) for key in ("python_later", "samples_missed", "samples_refused")}
    sampled = sum(both.quality["perf"]["captures"]["sampled"] for both in found)
    table.stated("    perf, Python frames changed between the two reads", f"{100 * total['python_later'] / max(1, sampled):.2f} % of {sampled}")
    table.stated("    perf, samples not in time; refused", f"{total['samples_missed']}; {total['samples_refused']}")


def measure(table, folder, quick):
    """Both engines on the same processes."""
    count, seconds = phases.asked["recordings"] or (1 if quick else RECORDINGS), phases.asked["seconds"] or (4 if quick else SECONDS)
    table.heading(f"Engines: perf and ptrace on the same process at the same time ({count} recordings or more of {seconds:g} s at {RATE} Hz)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing() or no_perf_events()
    if missing:
        table.skip("engines", missing)
        return
    tools = {engine: profilers.TorchSpy(folder, engine) for engine in ENGINES}
    for target in TARGETS:
        name = target[0]
        found, logs = record_target(tools, folder, python, target, count, seconds, not quick)
        tids = found[-1].tids
        for rank, (pid, tid) in enumerate(sorted(tids.items())):
            label = name if len(tids) == 1 else f"{name}, rank {rank}"
            each = [true_shares(name, logs[tid], both) for both in found] if tid in logs else []
            true = {key: statistics.mean(shares[key] for shares in each) for key in each[0]} if each else {}
            judge_shares(table, label, found, pid, true)
            if name == PLANTED:
                judge_truth(table, label, found, pid, true)
        judge_captures(table, name, found)
