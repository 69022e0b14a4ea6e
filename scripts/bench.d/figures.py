"""Figures, bars and the table that they are printed in."""

import math
import os
import platform
import random
import statistics

PASS, FAIL, SKIP, STATED = "PASS", "FAIL", "SKIP", "stated"


def quantile(values, share):
    """The value that a share of `values` does not exceed; NaN without any."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def median(values):
    """The median; NaN without any."""
    return statistics.median(values) if values else math.nan


def middle_mean(values):
    """The mean of the values between the quartiles, so that single disturbances count for nothing, and its standard error.

    The error is that of a trimmed mean (Tukey and McLaughlin 1963): of the values, with each tail drawn in to its quartile, over the
    share that is kept. NaN for what cannot be determined from so few.
    """
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    if len(ordered) < 2:
        return median(ordered), math.nan
    drawn_in = [middle[0]] * quarter + middle + [middle[-1]] * quarter
    return statistics.mean(middle), statistics.stdev(drawn_in) / len(ordered) ** 0.5 * len(ordered) / len(middle)


def median_upper_bound(values, confidence=0.95, rounds=4000):
    """One-sided upper bound of the median, by bootstrap with a fixed seed; infinite below three values."""
    if len(values) < 3:
        return math.inf
    draw = random.Random(1)
    return quantile([statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds)], confidence)


class Table:
    """Rows of (bar, measured, limit, verdict), printed as they come and summed up at the end."""

    def __init__(self, quick, name="bench"):
        self.quick, self.name = quick, name
        self.counts = {PASS: 0, FAIL: 0, SKIP: 0, STATED: 0}
        print(f"{'bar':<58} {'measured':>22} {'limit':>12}  verdict", flush=True)

    def heading(self, text):
        print(f"\n{text}", flush=True)

    def _row(self, bar, measured, limit, verdict):
        self.counts[verdict] += 1
        print(f"{bar:<58} {measured:>22} {limit:>12}  {verdict}", flush=True)

    def at_most(self, bar, value, limit, form="{:.3f}", note=""):
        """A bar that `value` meets if it is at most `limit`."""
        self._row(bar, form.format(value) + note, "<= " + form.format(limit), PASS if value <= limit else FAIL)

    def at_least(self, bar, value, limit, form="{:.3f}", note=""):
        """A bar that `value` meets if it is at least `limit`."""
        self._row(bar, form.format(value) + note, ">= " + form.format(limit), PASS if value >= limit else FAIL)

    def stated(self, bar, measured):
        """A figure without a limit."""
        self._row(bar, measured, "", STATED)

    def skip(self, bar, why):
        """A bar that could not be measured here."""
        self._row(bar, "", "", SKIP)
        print(f"    skipped: {why}", flush=True)

    def fail(self, bar, why):
        """A bar whose measurement itself failed."""
        self._row(bar, "", "", FAIL)
        print(f"    failed: {why}", flush=True)

    def close(self):
        """Prints the sum."""
        counts = self.counts
        print(f"\n{self.name}: {counts[PASS]} passed, {counts[FAIL]} failed, {counts[SKIP]} skipped, {counts[STATED]} stated")
        if self.quick and counts[FAIL]:
            print("quick form: too short to judge figures; it fails only where something could not be measured")


def machine_facts():
    """What the figures were taken on, in a few lines."""
    model = "unknown CPU"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/sys/devices/system/clocksource/clocksource0/current_clocksource", encoding="utf-8") as file:
        clock = file.read().strip()
    load = os.getloadavg()
    return [
        f"machine: {model}, {os.cpu_count()} CPUs ({len(os.sched_getaffinity(0))} usable), kernel {platform.release()}, clock {clock}",
        f"load before: {load[0]:.2f} {load[1]:.2f} {load[2]:.2f}; Python {platform.python_version()}; uid {os.getuid()}",
    ]
