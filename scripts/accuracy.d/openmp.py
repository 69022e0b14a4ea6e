"""Part 8: all CPUs busy. Training with OpenMP on every core, and two ranks on two cores, recorded.

The truth of phases is the script's own clock; that of the barrier (`omp_idle`) is a sampler inside the script, which interrupts the
main thread by a timer of its own and needs no other thread (tests/programs/openmp_truth.py).

A share of so many ticks scatters: its standard error is printed beside the row. The limit is one of the bias, so that a phase that is beyond it by
less than two standard errors is measured again, and the recordings are taken together.
"""

import json
import os
import time

import profilers
import recorded
from targets import Target, torch_python

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
# Of so many ticks the standard error is well under the limit.
SECONDS = {"mlp": 40, "ddp": 60, "gpt": 40, "resnet": 20}
BARE_SECONDS = 6
MOST_RECORDINGS = 3
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
    """(log, window, report) of a trainer, of ddp its first rank: recorded, and then bare."""
    path = os.path.join(folder, f"{work}.json")
    arguments = ("--log", path, "--work", work, "--threads", threads)
    with Target.python("openmp_truth.py", *arguments, python=python, timeout=600) as target:
        with tool.attach(target.pid, duration=seconds, rate=RATE, options=options) as run:
            run.wait(seconds + 120)
        time.sleep(1 + min(seconds, BARE_SECONDS))
        target.go()
        target.read_line(600)
    with open(f"{path}.0" if work == "ddp" else path, encoding="utf-8") as file:
        log = json.load(file)
    samples = recorded.Dump(run.recording).samples(log["tid"])
    return log, (samples[0].start_ns, samples[-1].end_ns), tool.report(run.recording)


def measured(log, window, report):
    """What one recording of a trainer says, and the truth: figures in points, the number of its ticks, its cause."""
    shares = {key: report["intervals"]["phases"][key]["share"] for key in (*PHASES, "communication")}
    said = {f"said {key}": 100 * shares[key] for key in PHASES}
    # DDP's hooks run inside of backward, by the script's clock.
    said["said backward"] += 100 * shares["communication"]
    after = [(window[1] + 1_000_000_000, log["switches"][-1][0])]
    by_cpu, by_wall = (barrier_share(log[clock], [window]) for clock in ("cpu", "wall"))
    slower = steps_per_s(log["switches"], *after[0]) / steps_per_s(log["switches"], *window) - 1
    figures = {
        **said,
        **{f"true {key}": share for key, share in phase_shares(log["switches"], *window).items()},
        "barrier": 100 * report["intervals"]["activities"]["omp_idle"]["share"],
        "by CPU time": by_cpu,
        "by the wall clock": by_wall,
        "bare": barrier_share(log["cpu"], after),
        "slower": 100 * slower,
    }
    quality = report["quality"]
    ticks = [quality[key] for key in ("ticks", "late_ticks", "missed_ticks")]
    return figures, ticks, (report["verdict"] or {}).get("cause")


def together(found):
    """Several recordings as one: each figure by their ticks, and how many of these there were."""
    ticks = [sum(counts) for counts in zip(*(ticks for _, ticks, _ in found))]
    figures = {key: sum(each[key] * counts[0] for each, counts, _ in found) / ticks[0] for key in found[0][0]}
    return figures, ticks


def most_off(figures, ticks):
    """(phase, points that it is off by, their standard error)."""
    off = {phase: figures[f"said {phase}"] - figures[f"true {phase}"] for phase in PHASES}
    worst = max(PHASES, key=lambda phase: abs(off[phase]))
    return worst, abs(off[worst]), recorded.standard_error(figures[f"true {worst}"], ticks)


def judge(table, name, found):
    """The rows of a trainer's recordings."""
    figures, (ticks, late, missed) = together(found)
    worst, off, error = most_off(figures, ticks)
    label = f"{name}: phase that is most off ({worst}), of {ticks} ticks"
    table.at_most(label, off, PHASE_LIMIT, "{:.1f}", f" points, standard error {error:.1f}")
    if "--nonblocking" in name:
        # Barriers are not seen: no native frames are read of what runs. The verdict may not take
        # them for something else.
        for _, _, cause in found:
            table.at_most(f"    verdict {cause or 'none'}: needs frames that were not read", int(cause in HOST_CAUSES), 0, "{:d}")
    else:
        off = abs(figures["barrier"] - figures["by CPU time"])
        table.at_most("    barrier, off the sampler inside", off, BARRIER_LIMIT, "{:.1f}", " points")
    phases = ", ".join(f"{phase} {figures[f'said {phase}']:.1f} (true {figures[f'true {phase}']:.1f})" for phase in PHASES)
    barrier = ", ".join(f"{key} {figures[key]:.1f}" for key in ("by CPU time", "by the wall clock", "bare"))
    print(f"    {phases}; barrier {figures['barrier']:.1f} ({barrier})")
    print(f"    {figures['slower']:+.1f} % time of a step; {len(found)} recordings, {ticks} ticks, {late} late, {missed} missed", flush=True)


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
        found = []
        while True:
            found.append(measured(*record(tool, folder, python, work, threads, options, seconds)))
            figures, ticks = together(found)
            _, off, error = most_off(figures, ticks[0])
            if quick or not recorded.is_open(off, error, PHASE_LIMIT) or len(found) == MOST_RECORDINGS:
                break
        judge(table, name, found)
