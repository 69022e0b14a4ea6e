"""Idle time by line and energy, against what a program logged of its turns and the double of NVML replayed."""

import bisect
import csv
import os
import re
import subprocess

import nvml_double
import profilers
from figures import median
from targets import Failed, Target

# Lines of these functions of tests/programs/gpu_phases.py are what the host is at in a busy and in
# an idle turn of it.
FUNCTIONS = {"keep_busy": True, "be_idle": False}
# A line that a look or two saw by chance is not the turn.
LEAST_HOST_S = 0.5
# The sampler knows the edges of a recording, and of the first and last turn in it, to some ticks.
EDGES_S = 0.05
# The double's windows of utilization, ms, give or take its jitter.
WINDOW_MS = 167
# How far the device is behind the host, as a part of the shorter turn: what a turn of the host has
# is then part busy, part idle.
LAGS = (0, 0.3, 0.7)
# Lengths of busy and idle turns, ms; for how long each is recorded, s, and with which of the lags.
SERIES = [(ms, ms, 3.5, LAGS[:2]) for ms in (20, 60, 150, 300)]
SERIES += [(ms, ms, 10 if ms < 2000 else 12, LAGS) for ms in (500, 1000, 2000)]
SERIES += [(500, 700, 12, LAGS[:1]), (1000, 400, 12, LAGS[1:2]), (300, 1500, 12, LAGS[1:2]), (2000, 60, 12, LAGS[:1])]
QUICK_SERIES = [(150, 150, 3.5, LAGS[:1]), (500, 500, 6, LAGS[1:2])]
# Energy is judged where the two steps of the counter (100 ms) at a recording's ends are less than
# the bar.
LEAST_ENERGY_S = 9


class Log:
    """Turns of the device as a program logged them, and its own, which are earlier by a lag."""

    def __init__(self, path, lag_s):
        with open(path, encoding="utf-8") as file:
            lines = [line.split() for line in file.read().splitlines(keepends=True) if line.endswith("\n")]
        self.times = [int(words[0]) / 1e9 for words in lines]
        self.busy = [words[1] == "1" for words in lines]
        self.lag_s = lag_s
        # Busy time of the device until each of the turns began.
        self.sums = [0.0]
        for begin, end, busy in zip(self.times, self.times[1:], self.busy):
            self.sums.append(self.sums[-1] + (end - begin) * busy)

    def busy_until(self, time_s):
        """Busy time of the device from the first turn to a moment."""
        turn = bisect.bisect_right(self.times, time_s) - 1
        return self.sums[turn] + (time_s - self.times[turn]) * self.busy[turn] if turn >= 0 else 0.0

    def idle_of(self, busy, from_s, to_s):
        """Time in which the device was idle while the host was in a busy turn (or an idle one) between two moments."""
        idle = 0.0
        ends = [*self.times[1:], float("inf")]
        for begin, end, own in zip(self.times, ends, self.busy):
            begin, end = max(begin - self.lag_s, from_s), min(end - self.lag_s, to_s)
            if own == busy and begin < end:
                idle += end - begin - (self.busy_until(end) - self.busy_until(begin))
        return idle


class Sums:
    """What was reported of turns of one length."""

    def __init__(self):
        self.given = self.covered = self.nearly = self.unresolved = 0
        self.widths = []

    def words(self):
        """In the order of the row's name."""
        return f"{self.given} / {self.covered} / {self.nearly} / {self.unresolved}"


def output(*arguments):
    """What torchspy prints."""
    done = subprocess.run([profilers.torchspy_path(), *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failed(f"{arguments}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def start_of(recording, text):
    """When a recording began, CLOCK_MONOTONIC, s, from what `inspect` prints of it."""
    start = re.search(r"^from ([0-9.]+) s \(monotonic", text, re.MULTILINE)
    if not start:
        raise Failed(f"inspect {recording}: no start\n{text[:2000]}")
    return float(start[1])


def span(recording):
    """When the recording began, and from when to when its one thread was sampled, CLOCK_MONOTONIC, s."""
    text = output("inspect", "--samples", recording)
    start = start_of(recording, text)
    samples = re.findall(r"^  at (-?[0-9.]+) s for ([0-9.]+) s,", text, re.MULTILINE)
    if not samples:
        raise Failed(f"inspect --samples {recording}: no samples")
    return start, start + float(samples[0][0]), start + max(float(at) + float(length) for at, length in samples)


def record(tool, folder, busy_ms, idle_ms, seconds, lag):
    """One recording of turns: (its log, its report, its path)."""
    lag_ms = lag * min(busy_ms, idle_ms)
    path = os.path.join(folder, "turns")
    with Target.python("gpu_phases.py", "--lag-ms", lag_ms, path, busy_ms, idle_ms) as target:
        options, variables = nvml_double.setting(folder, [nvml_double.gpu(0, target.pid, {"file": path})])
        with tool.attach(target.pid, seconds, options=("--no-native", *options), variables=variables) as run:
            run.wait(seconds + 60)
    return Log(path, lag_ms / 1e3), tool.report(run.recording), run.recording


def idle_times(sums, log, report, recording, lengths):
    """Adds what is reported of the two functions' lines to the sums of their turns' lengths."""
    _, from_s, to_s = span(recording)
    reported = 0
    for row in report["gpu_idle"]:
        if row["kind"] != "line" or row["name"] not in FUNCTIONS:
            continue
        busy = FUNCTIONS[row["name"]]
        length_ms = lengths[0] if busy else lengths[1]
        own = sums.setdefault(length_ms, Sums())
        if row["host_s"] < LEAST_HOST_S:
            # Of a line beside, no figure may be given either where its function's turns are too
            # short.
            own.given += bool(row["resolved"] and length_ms < 2 * WINDOW_MS)
            continue
        reported += 1
        if not row["resolved"]:
            if row["seconds"] is not None or row["interval"] is not None:
                raise Failed(f"a figure that is not resolved: {row}")
            own.unresolved += 1
            continue
        truth, low, high = log.idle_of(busy, from_s, to_s), row["interval"]["low"], row["interval"]["high"]
        own.given += 1
        own.covered += low <= truth <= high
        own.nearly += low - EDGES_S <= truth <= high + EDGES_S
        own.widths.append((high - low) / row["host_s"])
        if not low <= truth <= high:
            print(f"    {lengths} ms, {row['name']}: {low:.4f} .. {high:.4f} s, and it was {truth:.4f} s", flush=True)
    if reported == 0:
        raise Failed(f"turns of {lengths} ms: no line of them in {report['gpu_idle']}, {report['gpu_idle_missing']}")


def energies(log, report, recording):
    """Energy as reported and as planted, J, over the time from the first reading of the counter to the last, and that time, s."""
    start, *_ = span(recording)
    rows = [row for row in csv.DictReader(output("convert", "--format", "csv", "-o", "-", recording).splitlines()) if row["lane"] == "energy"]
    rows = [row for row in rows if not row["missing"]]
    if not rows:
        raise Failed(f"no energy in {recording}")
    from_s, to_s = start + float(rows[0]["start_s"]), start + float(rows[-1]["end_s"])
    busy_s = log.busy_until(to_s) - log.busy_until(from_s)
    planted = nvml_double.IDLE_W * (to_s - from_s) + (nvml_double.BUSY_W - nvml_double.IDLE_W) * busy_s
    return report["energy"]["devices"][0]["energy_j"], planted, to_s - from_s


def measure(table, tool, folder, quick):
    """Issue 4, bar 1, as one series."""
    sums, reported_j, planted_j, worst, judged = {}, 0.0, 0.0, 0.0, 0
    for busy_ms, idle_ms, seconds, lags in QUICK_SERIES if quick else SERIES:
        for lag in lags:
            log, report, recording = record(tool, folder, busy_ms, idle_ms, seconds, lag)
            idle_times(sums, log, report, recording, (busy_ms, idle_ms))
            reported, planted, length_s = energies(log, report, recording)
            reported_j, planted_j = reported_j + reported, planted_j + planted
            if length_s >= LEAST_ENERGY_S:
                judged += 1
                worst = max(worst, abs(reported / planted - 1))
            os.remove(recording)
    print("    lines by their turns' length: figures / that cover the truth / within 50 ms of it / not resolved", flush=True)
    for length_ms, own in sorted(sums.items()):
        table.stated(f"turns of {length_ms} ms ({length_ms / WINDOW_MS:.1f} windows)", own.words())
    short = [own for length_ms, own in sums.items() if length_ms < 2 * WINDOW_MS]
    long = [own for length_ms, own in sums.items() if length_ms >= 2 * WINDOW_MS]
    given = sum(own.given for own in long)
    table.at_most("figures of turns under two windows", sum(own.given for own in short), 0, "{:.0f}")
    table.at_least("figures of longer turns, of all of their lines", given / max(1, given + sum(own.unresolved for own in long)), 0.9, "{:.3f}")
    table.at_least(f"intervals that cover the truth, of {given}", sum(own.covered for own in long) / max(1, given), 0.9, "{:.3f}")
    table.stated("    with 50 ms for the recording's edges", f"{sum(own.nearly for own in long) / max(1, given):.3f}")
    table.at_most("    further off than that: reported, and wrong", sum(own.given - own.nearly for own in long), 0, "{:.0f}")
    widths = [width for own in long for width in own.widths]
    table.stated("    width of an interval / the line's time: median, most", f"{median(widths):.2f}, {max(widths, default=0):.2f}")
    table.at_most(f"energy against what was planted, of {planted_j:.0f} J", 100 * abs(reported_j / planted_j - 1), 2, "{:.2f} %")
    if judged:
        table.at_most(f"    worst of {judged} recordings of {LEAST_ENERGY_S} s and more", 100 * worst, 2, "{:.2f} %")
