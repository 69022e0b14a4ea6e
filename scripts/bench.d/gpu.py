"""Lanes of GPUs, from the double of NVML: what collecting them costs, a call of the driver that hangs, and idle time by line.

What the double itself takes is part of every figure: its calls are made on the threads that are measured. They are cheaper than a
driver's; how torchspy bears with dear ones is measured with calls that spin.
"""

import math
import os
import time

import gpu_turns
import nvml_double
import profilers
from figures import median
from own import cpu_seconds
from stops import Felt
from targets import Failed, Target

GPUS = 8
# The threads that collect: one for the driver, one for each device, one for the host.
DEVICES, HOST = "torchspy-gpu", "torchspy-host"
# Lanes that a recording must have of each device to count as one with all of them.
LANES = (
    "utilization", "memory_busy", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "power_w", "energy_j", "memory",
    "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle", "pcie_received_bytes_s", "pcie_sent_bytes_s",
    "nvlink_received_bytes_s", "nvlink_sent_bytes_s",
)  # fmt: skip
# Calls that hang, one on each of the first devices.
HANGING = (
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlGpmSampleGet",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
# Calls that spin, as a driver's may, us: the two that are made in every round.
DEAR = {"nvmlGpmSampleGet": 300, "nvmlDeviceGetTotalEnergyConsumption": 300}
# The first seconds are no part of the steady state: symbols are read, and devices are found.
WARM_UP = 2.0
# A stop that a hanging call held up would come seconds late. The machine itself is away for some
# periods now and then.
LONGEST_MS = 100


class Spent:
    """CPU time of a torchspy so far: of all of it, s, and of its threads that collect, ns by thread."""

    def __init__(self, pid):
        self.at = time.monotonic()
        self.all = cpu_seconds(pid)
        self.collectors = {}
        for tid in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
                    name = file.read().strip()
                with open(f"/proc/{pid}/task/{tid}/schedstat", encoding="utf-8") as file:
                    ran = int(file.read().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if name.startswith((DEVICES, HOST)):
                self.collectors[tid] = name, ran

    def since(self, earlier):
        """Percent of a core from `earlier` on: (all of torchspy, {thread's name: collector})."""
        seconds = self.at - earlier.at
        shares = {}
        for tid, (name, ran) in self.collectors.items():
            before = earlier.collectors.get(tid, (name, 0))[1]
            shares[name] = shares.get(name, 0) + 100 * (ran - before) / 1e9 / seconds
        return 100 * (self.all - earlier.all) / seconds, shares


class Watched:
    """One recording of the probe: what the probe felt, what torchspy used, and what it says itself."""

    def __init__(self, tool, make, seconds):
        with Target.python("probe.py", "--sleepers", 0) as target:
            options, variables = make(target.pid)
            target.go()
            with tool.attach(target.pid, seconds, options=options, variables=variables) as run:
                warm_up = min(WARM_UP, seconds / 4)
                time.sleep(warm_up)
                begun = Spent(run.process.pid)
                # A moment before its end, while all of its threads are there.
                time.sleep(max(0, run.started_ns / 1e9 + seconds - 0.5 - time.monotonic()))
                ended = Spent(run.process.pid)
                run.wait(seconds + 60)
                target.signal()
                result = target.read_json()
        felt = Felt(result)
        if not felt.stops_us:
            raise Failed("the probe felt no stop")
        self.seconds = ended.at - begun.at
        self.cpu, self.collectors = ended.since(begun)
        # When each stop began, CLOCK_MONOTONIC, s.
        self.stops = [gap[0] / 1e9 for gap in result["gaps"] if gap[2]]
        # The machine itself is away for some milliseconds now and then, which a mean of all would
        # be.
        usual = sorted(felt.stops_us)[: math.ceil(0.98 * len(felt.stops_us))]
        self.mean_us = sum(usual) / len(usual)
        self.recording = run.recording
        self.report = tool.report(run.recording)

    def collecting(self):
        """Percent of a core of all threads that collect."""
        return sum(self.collectors.values())

    def start(self):
        """When the recording began, CLOCK_MONOTONIC, s."""
        return gpu_turns.start_of(self.recording, gpu_turns.output("inspect", self.recording))


def expect_lanes(report):
    """Fails where a recording has not every counter track of every device."""
    gpus = report["gpus"]
    lacking = {f"GPU {gpu['index']} {name}" for gpu in gpus for name in LANES if gpu[name] is None}
    if len(gpus) != GPUS or lacking:
        raise Failed(f"{len(gpus)} GPUs were recorded of {GPUS}; without {sorted(lacking)}")


def without(_pid):
    """No NVML at all. The counter tracks of the host are collected as always."""
    return ("--gpu", "none"), {}


def cost(table, tool, folder, quick):
    """CPU of the threads that collect, and stops with and without them, in turn."""
    seconds, rounds = (8, 1) if quick else (20, 3)

    def every_lane(pid):
        return nvml_double.machine(folder, pid, GPUS)

    bare, full = [], []
    for number in range(rounds):
        for make, runs in ((without, bare), (every_lane, full))[:: 1 if number % 2 == 0 else -1]:
            runs.append(Watched(tool, make, seconds))
    for run in full:
        expect_lanes(run.report)

    def mean(runs, figure):
        return sum(figure(run) * run.seconds for run in runs) / sum(run.seconds for run in runs)

    length = sum(run.seconds for run in full)
    table.at_most(f"collecting, {GPUS} GPUs and every counter track, over {length:.0f} s", mean(full, Watched.collecting), 0.5, "{:.3f} %", " of a core")
    host = mean(full, lambda run: run.collectors.get(HOST, 0))
    period = median([run.report["gpus"][0]["gpm_window_ms"] for run in full])
    table.stated("    of it the host's counter tracks; a reading each", f"{host:.3f} %; {period:.0f} ms")
    table.stated("    the same with --gpu none", f"{mean(bare, Watched.collecting):.3f} %")
    all_of_it = [mean(runs, lambda run: run.cpu) for runs in (bare, full)]
    table.stated("    all of torchspy, without NVML / with", f"{all_of_it[0]:.2f} / {all_of_it[1]:.2f} %")
    felt = [median([run.mean_us for run in runs]) for runs in (bare, full)]
    table.stated("mean stop but for the longest 2 %, without NVML / with", f"{felt[0]:.1f} / {felt[1]:.1f} us")
    noise = max(max(run.mean_us for run in bare) / felt[0], felt[0] / min(run.mean_us for run in bare)) - 1
    table.at_most("    with / without", felt[1] / felt[0], 1.1, "{:.3f}")
    table.stated("    runs without NVML differ from their median by", f"{100 * noise:.1f} %")
    said = [median([run.report["quality"]["stop_us"]["p50"] for run in runs]) for runs in (bare, full)]
    share = [100 * median([run.report["quality"]["stopped_share"] for run in runs]) for runs in (bare, full)]
    table.stated("    by its own figures: p50; stopped share", f"{said[0]:.0f} / {said[1]:.0f} us; {share[0]:.2f} / {share[1]:.2f} %")


def dear_calls(table, tool, folder, quick):
    """The same where calls of the driver cost something: readings come seldomer then."""
    faults = [{"call": call, "spin_us": spin_us} for call, spin_us in DEAR.items()]
    run = Watched(tool, lambda pid: nvml_double.machine(folder, pid, GPUS, faults), 8 if quick else 20)
    expect_lanes(run.report)
    what = f"collecting where a round's calls spin for {sum(DEAR.values())} us, {run.seconds:.0f} s"
    table.at_most(what, run.collecting(), 0.5, "{:.3f} %", " of a core")
    table.stated("    a reading each", f"{run.report['gpus'][0]['gpm_window_ms']:.0f} ms")


def longest_ms(stops, from_s, to_s):
    """Longest time between two stops that lies, in part, between two moments, ms."""
    apart = [later - earlier for earlier, later in zip(stops, stops[1:]) if later > from_s and earlier < to_s]
    return 1000 * max(apart, default=to_s - from_s)


def rate(stops, from_s, to_s):
    """Stops a second between two moments."""
    return sum(from_s <= stop < to_s for stop in stops) / max(to_s - from_s, 1e-9)


def hanging_calls(table, tool, folder, quick):
    """Calls that block for 5 s on most of the devices, from the same moment on, against the time before and after, and a run without."""
    block_s, from_s, seconds, rounds = (2, 1.5, 5, 1) if quick else (5, 3, 12, 2)
    faults = [{"call": call, "gpu": number, "from_s": from_s, "times": 1, "block_ms": int(1000 * block_s)} for number, call in enumerate(HANGING)]
    gaps, longest, elsewhere, ratios, late = 0, [], [], [], []
    for _ in range(rounds):
        run = Watched(tool, lambda pid: nvml_double.machine(folder, pid, GPUS, faults), seconds)
        start = run.start()
        found = [
            (start + gap["from_s"], start + gap["to_s"])
            for gpu in run.report["gpus"]
            for gap in gpu["missing"]
            if gap["reason"] == nvml_double.LONG_CALL and gap["to_s"] - gap["from_s"] >= block_s - 0.1
        ]
        if not found:
            raise Failed("no call was seen to hang")
        gaps += len(found)
        # While all of them hang.
        begin, end = max(gap[0] for gap in found), min(gap[1] for gap in found)
        first, last = run.stops[0], run.stops[-1]
        longest.append(longest_ms(run.stops, begin, end))
        # The first stops are further apart: a thread is looked at anew, and its symbols are read.
        elsewhere += [longest_ms(run.stops, first + 0.5, begin), longest_ms(run.stops, end, last)]
        before_and_after = (rate(run.stops, first + 0.5, begin) * (begin - first - 0.5) + rate(run.stops, end, last) * (last - end)) / (
            begin - first - 0.5 + last - end
        )
        ratios.append(rate(run.stops, begin, end) / before_and_after)
        late.append(run.report["quality"])
    bare = Watched(tool, lambda pid: nvml_double.machine(folder, pid, GPUS), seconds)
    table.at_least(f"calls that hung for {block_s} s and are gaps of their device", gaps, rounds * len(HANGING), "{:.0f}")
    table.at_most("longest time between two stops while they hang", max(longest), LONGEST_MS, "{:.1f} ms")
    alone = longest_ms(bare.stops, bare.stops[0] + 0.5, bare.stops[-1])
    table.stated("    before and after / in a run without them", f"{max(elsewhere):.1f} / {alone:.1f} ms")
    table.at_least("stops a second, while they hang / before and after", median(ratios), 0.95)

    def ticks(qualities):
        return "/".join(str(sum(quality[name] for quality in qualities)) for name in ("late_ticks", "missed_ticks", "ticks"))

    table.stated("    ticks late/missed/all, with; without", f"{ticks(late)}; {ticks([bare.report['quality']])}")


def measure(table, folder, quick):
    """Issue 4, bars 1 and 3."""
    table.heading(f"GPUs: what their counter tracks cost ({GPUS} GPUs of the double of NVML, beside a thread that spins)")
    lacking = nvml_double.missing()
    if lacking:
        table.skip("GPUs", lacking)
        return
    tool = profilers.TorchSpy(folder)
    cost(table, tool, folder, quick)
    dear_calls(table, tool, folder, quick)
    hanging_calls(table, tool, folder, quick)
    table.heading("GPUs: idle time by line and energy, of turns that the double replays")
    gpu_turns.measure(table, tool, folder, quick)
