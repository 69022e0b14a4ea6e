"""Part 8: all CPUs busy. Training with OpenMP on every core, and two ranks on two cores, recorded.

The truth of phases is the script's own clock; that of the barrier (`omp_idle`) is a sampler inside the script, which interrupts the
main thread by a timer of its own and needs no other thread (tests/programs/openmp_truth.py).
"""

import json
import os
import time

import profilers
import recorded
from targets import Failed, Target, torch_python

RATE = 100
PHASES = ("input", "forward", "backward", "optimizer")
# (script, OpenMP threads, options of torchspy)
RUNS = [
    (work, threads, options)
    for work in ("mlp", "gpt", "resnet", "ddp")
    for threads, options in ((2, ()), (1, ()), (2, ("--nonblocking",)))
    if work != "ddp" or (threads == 1 and not options)
]
QUICK = [("mlp", 2, ()), ("ddp", 1, ())]
HOST_CAUSES = ("Python-bound", "dispatch-bound", "launch-bound", "host-compute-bound", "barrier-bound")
# Shares of so many ticks scatter by less than half a point; steps of a millisecond are the least
# even.
SECONDS = {"mlp": 40, "ddp": 40, "gpt": 20, "resnet": 20}
# Points that a phase and the barrier may be off by.
PHASE_LIMIT, BARRIER_LIMIT = 2.0, 5.0


def phase_shares(switches, from_ns, to_ns):
    """Shares of the window by phase."""
    spent = dict.fromkeys(PHASES, 0)
    for (start, name), (end, _) in zip(switches, switches[1:]):
        inside = min(end, to_ns) - max(start, from_ns)
        if inside > 0 and name in spent:
            spent[name] += inside
    return {name: 100 * ns / (to_ns - from_ns) for name, ns in spent.items()}


def barrier_share(samples, windows):
    """How many of a sampler's samples within the windows lie in libgomp, %; NaN of none."""
    found = [inside for moment, inside in samples if any(begin <= moment < end for begin, end in windows)]
    return 100 * sum(found) / len(found) if found else float("nan")


def steps_per_s(switches, from_ns, to_ns):
    """Steps that begin in the window, by its length."""
    return sum(name == "forward" and from_ns <= moment < to_ns for moment, name in switches) / ((to_ns - from_ns) / 1e9)


def record(tool, folder, python, work, threads, options, seconds):
    """[(log, windows, report)] of each trainer: bare before, then recorded."""
    path = os.path.join(folder, f"{work}.json")
    arguments = ("--log", path, "--work", work, "--threads", threads)
    with Target.python("openmp_truth.py", *arguments, python=python, timeout=600) as target:
        with tool.attach(target.pid, duration=seconds, rate=RATE, options=options) as run:
            run.wait(seconds + 120)
        time.sleep(1 + seconds / 2)
        target.go()
        target.read_line(600)
    paths = [f"{path}.0"] if work == "ddp" else [path]
    found = []
    for log_path in paths:
        with open(log_path, encoding="utf-8") as file:
            log = json.load(file)
        samples = recorded.Dump(run.recording).samples(log["tid"])
        window = (samples[0].start_ns, samples[-1].end_ns)
        found.append((log, window, tool.report(run.recording)))
    return found


def judge(table, name, log, window, report):
    """The rows of one trainer's recording."""
    true = phase_shares(log["switches"], *window)
    said = {key: 100 * report["intervals"]["phases"][key]["share"] for key in PHASES}
    # DDP's hooks run inside of backward, by the script's clock.
    said["backward"] += 100 * report["intervals"]["phases"]["communication"]["share"]
    worst = max(PHASES, key=lambda phase: abs(said[phase] - true[phase]))
    table.at_most(f"{name}: phase that is most off ({worst})", abs(said[worst] - true[worst]), PHASE_LIMIT, "{:.1f}", " points")
    by_cpu, by_wall = (barrier_share(log[clock], [window]) for clock in ("cpu", "wall"))
    after = [(window[1] + 1_000_000_000, log["switches"][-1][0])]
    bare = barrier_share(log["cpu"], after)
    barrier = 100 * report["intervals"]["activities"]["omp_idle"]["share"]
    if "--nonblocking" in name:
        # Barriers are not seen: no native frames are read of what runs. The verdict may not take
        # them for something else.
        cause = (report["verdict"] or {}).get("cause")
        table.at_most(f"    verdict {cause or 'none'}: needs frames that were not read", int(cause in HOST_CAUSES), 0, "{:d}")
    else:
        table.at_most("    barrier, off the sampler inside", abs(barrier - by_cpu), BARRIER_LIMIT, "{:.1f}", " points")
    phases = ", ".join(f"{phase} {said[phase]:.1f} (true {true[phase]:.1f})" for phase in PHASES)
    print(f"    {phases}; barrier {barrier:.1f} (by CPU time {by_cpu:.1f}, by the wall clock {by_wall:.1f}, bare {bare:.1f})")
    slower = steps_per_s(log["switches"], *after[0]) / steps_per_s(log["switches"], *window) - 1
    quality = report["quality"]
    print(f"    {100 * slower:+.1f} % time of a step; {quality['ticks']} ticks, {quality['late_ticks']} late, {quality['missed_ticks']} missed", flush=True)


def measure(table, folder, quick):
    """All CPUs busy."""
    table.heading(f"8. All CPUs busy (recordings at {RATE} Hz, against the script's own clock and sampler)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("all CPUs busy", missing)
        return
    tool = profilers.TorchSpy(folder)
    for work, threads, options in QUICK if quick else RUNS:
        name = " ".join([work, f"{threads} threads", *options])
        seconds = 5 if quick else SECONDS[work]
        for log, window, report in record(tool, folder, python, work, threads, options, seconds):
            judge(table, name, log, window, report)
