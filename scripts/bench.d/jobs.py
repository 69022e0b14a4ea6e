"""Jobs of many ranks: what a report of their recordings takes, how large its page is, and what it says of files that it cannot
read; and how long `dump --job` takes.

The recordings are those of a real job of four Gloo ranks, copied by scripts/simulate-job to as many ranks as are wanted. The
answers of other machines are copies of a real one, which a command prints in place of ssh.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time

import profilers
from targets import ROOT, Failed, Target, program, torch_python

# The real job: its ranks, and the one that sleeps in each step.
REAL_RANKS, SLOW_RANK = 4, 2
# Ranks of the simulated ones whose recordings are cut in half, not there, of a later and of an
# earlier version of the format.
CORRUPT, MISSING, NEWER, OLDER = 3, 5, 7, 9
# How the answer names a later version of the format.
NEWER_WORDS = "use a newer torchspy"
# MB of a recording that are allowed for the reduction beside it.
REDUCTION_MB = 0.5


def on_two_cpus():
    """The bars are those of two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def torchspy(*arguments, limit=3600):
    """Runs torchspy on two CPUs: (what it printed, seconds, its largest RSS in MB)."""
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        begin = time.monotonic()
        process = subprocess.Popen([profilers.torchspy_path(), *arguments], stdout=printed, stderr=said, preexec_fn=on_two_cpus)
        timer = threading.Timer(limit, process.kill)
        timer.start()
        # The figures of this process alone. They include what this Python had at the fork, some 30
        # MB.
        _, status, usage = os.wait4(process.pid, 0)
        spent = time.monotonic() - begin
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        said.seek(0)
        if process.returncode != 0:
            raise Failed(f"torchspy {' '.join(arguments)}: exit status {process.returncode}\n{said.read()[-2000:]}")
        return printed.read(), spent, usage.ru_maxrss * 1024 / 1e6


def run(command, limit=3600):
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    if done.returncode != 0:
        raise Failed(f"{command}: exit status {done.returncode}\n{done.stderr[-2000:]}")


def record(python, folder, seconds):
    """Records the real job for so long, a recording of each rank."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", str(REAL_RANKS)]
    recorder = [profilers.torchspy_path(), "record", "-o", os.path.join(folder, "{rank}.tspy"), "--"]
    run([*launcher, *recorder, python, program("ddp_gloo.py"), "--seconds", str(seconds), "--slow-rank", str(SLOW_RANK)], 1200)


def simulate(base, folder, ranks):
    """Copies the recordings in `base` to so many ranks."""
    size = max(os.path.getsize(os.path.join(base, name)) for name in os.listdir(base))
    needed = ranks * (size + REDUCTION_MB * 1e6)
    free = shutil.disk_usage(os.path.dirname(folder)).free
    if needed > free / 2:
        raise Failed(f"{ranks} recordings take {needed / 1e9:.0f} GB, more than half of what is free ({free / 1e9:.0f} GB): set TMPDIR")
    planted = ["--straggler", str(ranks // 2 + 1), "--slow-rank", str(SLOW_RANK), "--corrupt", str(CORRUPT), "--missing", str(MISSING)]
    versions = ["--newer", str(NEWER), "--older", str(OLDER)]
    run([os.path.join(ROOT, "scripts", "simulate-job"), "--from", base, "--to", folder, "--ranks", str(ranks), *planted, *versions])


def answered(table, answer, ranks):
    """What was planted is named, and the rest is answered."""
    left_out = {each["file"]: each["why"] for each in answer["left_out"]}
    cut = {each["file"] for each in answer["recordings"] if each["missing"]}

    def of(rank, files):
        return any(name.endswith(f"-{rank:05}.tspy") for name in files)

    newer = [name for name, why in left_out.items() if NEWER_WORDS in why]
    named = [of(CORRUPT, left_out) or of(CORRUPT, cut), MISSING in answer["missing_ranks"], of(NEWER, newer)]
    table.at_least("    corrupt, missing and newer: named", sum(named), len(named), "{:.0f}")
    found = {each["rank"] for each in answer["ranks"]}
    rest = set(range(ranks)) - {CORRUPT, MISSING, NEWER}
    table.at_most("    other ranks that are not in the answer", len(rest - found), 0, "{:.0f}")
    late = [each["rank"] for group in answer["groups"] for each in group["stragglers"]]
    table.at_least("    the straggler, and no other rank: named", int(late == [ranks // 2 + 1]), 1, "{:.0f}")


def thousand(table, folder, base, ranks, length):
    """The first report, and from what it has kept."""
    job = os.path.join(folder, "job")
    simulate(base, job, ranks)
    text, first, peak = torchspy("report", job, "--json")
    table.at_most(f"{ranks:,} ranks, {length}: the first report", first, 60, "{:.1f} s")
    table.at_most("    its peak memory", peak, 1000, "{:.0f} MB")
    answered(table, json.loads(text), ranks)
    again, kept, peak = torchspy("report", job, "--json")
    table.at_most("    from what that has kept", kept, 5, "{:.1f} s")
    table.at_most("    its peak memory", peak, 1000, "{:.0f} MB")
    table.at_least("    with the same answer", int(again == text), 1, "{:.0f}")
    shutil.rmtree(job)


def ten_thousand(table, folder, base, ranks, length):
    """A report from reductions, and the page."""
    job, page = os.path.join(folder, "job"), os.path.join(folder, "job.html")
    simulate(base, job, ranks)
    _, first, peak = torchspy("report", job)
    table.stated(f"{ranks:,} ranks, {length}: the first report", f"{first:.1f} s, {peak:.0f} MB")
    text, kept, peak = torchspy("report", job, "--json")
    table.at_most("    from reductions", kept, 60, "{:.1f} s")
    table.at_most("    its peak memory", peak, 1000, "{:.0f} MB")
    answered(table, json.loads(text), ranks)
    _, spent, peak = torchspy("convert", job, "-o", page)
    # The bar is 20 MB, and the book says 10.
    table.at_most("    the page", os.path.getsize(page) / 1e6, 10, "{:.1f} MB")
    table.stated("    its time and peak memory", f"{spent:.1f} s, {peak:.0f} MB")
    shutil.rmtree(job)
    os.remove(page)


def recordings(table, folder, quick):
    """Issue 20, bar 2."""
    table.heading("report of a job of many ranks: one recording is cut, one missing, one of a later and one of an earlier version")
    python = torch_python()
    if python is None:
        table.skip("report of a job", "no torch environment")
        return
    # A reduction has 256 bins of steps at most, however long its recording is: those of 10,000
    # ranks may be shorter.
    for part, ranks, seconds in [(thousand, 50, 20), (ten_thousand, 200, 10)] if quick else [(thousand, 1000, 600), (ten_thousand, 10_000, 60)]:
        with tempfile.TemporaryDirectory(prefix="real-", dir=folder) as real:
            record(python, real, seconds)
            part(table, folder, real, ranks, f"{seconds} s each")


def answers(folder, machines, odd):
    """Answers of machines with eight ranks each: one rank is where the last of the real answer is, the others where its first is."""
    with open(os.path.join(ROOT, "tests", "fixtures", "dump", "ranks.json"), encoding="utf-8") as file:
        answer = json.load(file)
    processes = answer["looks"][0]["processes"]
    first, last = (next(each for each in processes if each["rank"] == rank) for rank in (0, 2))
    for machine in range(machines):
        here = range(8 * machine, 8 * machine + 8)
        copies = [{**(last if rank == odd else first), "rank": rank, "world_size": 8 * machines, "pid": 1000 + rank % 8} for rank in here]
        answer["host"] = f"node{machine:03}"
        answer["looks"][0]["processes"] = copies
        with open(os.path.join(folder, f"node{machine:03}.json"), "w", encoding="utf-8") as file:
            json.dump(answer, file)


def longest(count, sentence, *arguments):
    """The longest of `count` dumps, s; each has to print the sentence."""
    spent = []
    for _ in range(count):
        text, took, _ = torchspy("dump", *arguments, limit=120)
        if not re.search(sentence, text):
            raise Failed(f"dump {' '.join(arguments)}: no {sentence!r} in\n{text[:2000]}")
        spent.append(took)
    return max(spent)


def dumps(table, folder, quick):
    """Issue 20, bar 5."""
    table.heading("dump --job of all ranks, which hang")
    count = 2 if quick else 10
    job = f"bench-jobs-{os.getpid()}"
    os.environ["TORCHELASTIC_RUN_ID"] = job
    try:
        target = Target.python("waiting_ranks.py", 64)
    finally:
        del os.environ["TORCHELASTIC_RUN_ID"]
    with target:
        via = ["--hosts", "here", "--via", "env HOST={host}", "--program", profilers.torchspy_path()]
        found = longest(count, r"rank 63 \(on here\) differs: waits: read at waiting_ranks\.py", *via, "--job", job)
    table.at_most(f"64 processes on this machine, longest of {count}", found, 2, "{:.2f} s")
    machines, odd = 125, 512
    answers(folder, machines, odd)
    hosts = ",".join(f"node{machine:03}" for machine in range(machines))
    # The name of the machine is the script's $0.
    via = ["--hosts", hosts, "--via", f"sh -c 'exec cat {folder}/$0.json' {{host}}", "--job", job]
    sentence = r"ranks 0-511, 513-999 wait in a collective that rank 512 is not in"
    for how, options in [(f"{machines} commands", via), ("a folder", ["--from", folder])]:
        table.at_most(f"1,000 simulated answers, from {how}, longest of {count}", longest(count, sentence, *options), 5, "{:.2f} s")


def measure(table, folder, quick):
    """Issue 20, bars 2 and 5."""
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("jobs of many ranks", missing)
        return
    for part in (dumps, recordings):
        with tempfile.TemporaryDirectory(prefix="jobs-", dir=folder) as own:
            part(table, own, quick)
