"""Part 2: planted phases. A training run that times its own phases and waits, recorded again and again.

The truth of a recording is what the run's own log says of exactly the time that was recorded. Phases are wall time. Waits
(`sleep`, `lock`, `gil`) are activities: of them the log takes off what the thread spent in the run queue meanwhile, as torchspy does.
"""

import json
import math
import os

import profilers
import recorded
from targets import Failed, Target, torch_python

RATE = 100
# The log's name, and where the report has it.
PLANTED = {
    "input": ("phases", "input"),
    "forward": ("phases", "forward"),
    "backward": ("phases", "backward"),
    "optimizer": ("phases", "optimizer"),
    "checkpoint": ("phases", "checkpoint"),
    "sleep": ("activities", "sleep"),
    "lock": ("activities", "lock_wait"),
    "gil": ("activities", "gil_wait"),
}


def truth(switches, from_ns, to_ns):
    """Shares of the window by name: wall time of phases, and of waits what was not spent in the run queue."""
    spent = dict.fromkeys(PLANTED, 0.0)
    if switches[0][0] > from_ns or switches[-1][0] < to_ns:
        raise Failed("the log does not cover the recording")
    for (start, name, queued), (end, _, queued_later) in zip(switches, switches[1:]):
        inside = min(end, to_ns) - max(start, from_ns)
        if inside <= 0 or name not in spent:
            continue
        part = inside / max(1, end - start)
        waiting = PLANTED[name][0] == "activities"
        spent[name] += inside - (part * (queued_later - queued) if waiting else 0)
    return {name: ns / (to_ns - from_ns) for name, ns in spent.items()}


def once(tool, target, seconds):
    """One recording: its path and the window of the trainer's samples."""
    with tool.attach(target.pid, duration=seconds, rate=RATE) as run:
        run.wait(seconds + 120)
    return run.recording


def windows(recordings, tid):
    """The time that each recording has samples of the thread for."""
    found = []
    for recording in recordings:
        samples = recorded.Dump(recording).samples(tid)
        found.append((samples[0].start_ns, samples[-1].end_ns))
    return found


def recorded_runs(tool, folder, python, count, seconds):
    """(truth, intervals of the report) of each recording."""
    log_path = os.path.join(folder, "planted.json")
    with Target.python("planted_phases.py", "--log", log_path, python=python) as target:
        recordings = [once(tool, target, seconds) for _ in range(count)]
        target.go()
        target.read_line(120)
    with open(log_path, encoding="utf-8") as file:
        log = json.load(file)
    runs = []
    for recording, (start, end) in zip(recordings, windows(recordings, log["tid"])):
        report = tool.report(recording)
        runs.append((truth(log["switches"], start, end), report["intervals"], report))
    return runs


# Set by the command line.
asked = {"recordings": None, "seconds": None}


def configure(recordings, seconds):
    """How many recordings to make, and how long; None: as the bar has it."""
    asked.update(recordings=recordings, seconds=seconds)


def measure(table, folder, quick):
    """Planted phases."""
    count, seconds = asked["recordings"] or (3 if quick else 20), asked["seconds"] or (6 if quick else 20)
    table.heading(f"2. Planted phases ({count} recordings of {seconds:g} s at {RATE} Hz, against the run's own log)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("planted phases", missing)
        return
    runs = recorded_runs(profilers.TorchSpy(folder), folder, python, count, seconds)
    lines = []
    for name, (axis, key) in PLANTED.items():
        found = [(true[name], intervals[axis][key]) for true, intervals, _ in runs]
        off = [100 * (share["share"] - true) for true, share in found]
        held = sum(share["low"] <= true <= share["high"] for true, share in found)
        mean_share = 100 * sum(true for true, _ in found) / count
        mean_off = sum(map(abs, off)) / count
        table.at_most(f"{name} ({mean_share:.1f} % of the time): mean error", mean_off, 0.5, "{:.2f}", " points")
        table.at_least("    recordings whose interval holds the truth", held, math.ceil(0.9 * count), "{:.0f}")
        width = 50 * sum(share["high"] - share["low"] for _, share in found) / count
        lines.append(
            f"    {name:<12}{mean_share:>7.2f} %{sum(off) / count:>+8.2f}{min(off):>+8.2f}{max(off):>+8.2f}   +-{width:.2f}"
        )
    print(f"    {'':<12}{'true':>9}{'bias':>8}{'least':>8}{'most':>8}   mean half interval, points")
    print("\n".join(lines), flush=True)
    late = sum(report["quality"]["late_ticks"] for _, _, report in runs)
    ticks = sum(report["quality"]["ticks"] for _, _, report in runs)
    table.stated("    ticks that came late", f"{late} of {ticks}")
