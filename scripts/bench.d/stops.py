"""Bar 1: how long, and how often, a running thread stands still for a sample; EINTRs in epoll_wait."""

import time

import profilers
from figures import median, middle_mean, quantile
from targets import Failed, Target

SLEEPERS = (0, 60)
# torchspy is suspended every other turn of so long, so that what a shared machine does to the probe
# is taken off turn by turn: it takes 10 to 20 ms of each second, and never the same, where torchspy
# takes 5. The peers' stops are so much longer than that that a bare run beside theirs will do; and
# py-spy, suspended, may leave its target stopped.
TURN_S = 0.5
# What comes between two turns: a profiler that goes on looks at all threads anew.
BETWEEN_S = 0.1
SETTLE_S = 1.0


class Felt:
    """What the probe felt in one run: gaps, stops among them, and the time that it was watched for."""

    def __init__(self, result):
        self.seconds = (result["window_ns"][1] - result["window_ns"][0]) / 1e9
        self.all_us = sum(gap[1] for gap in result["gaps"]) / 1e3
        # A ptrace stop is a voluntary context switch, which a thread that only spins never makes by
        # itself.
        self.stops_us = [gap[1] / 1e3 for gap in result["gaps"] if gap[2]]
        self.lost = None
        if result["lost"]:
            raise Failed(f"the probe's buffer was too small: {result['lost']} gaps lost")


class FeltInTurns:
    """What the probe felt of a profiler that was suspended every other turn."""

    def __init__(self, result, turns, quality=None):
        whole = Felt(result)
        self.felt = len(whole.stops_us)
        if quality:
            self.ticks, self.fresh_captures = quality["ticks"], quality["fresh"]
        recorded = [within(result["gaps"], turn) for turn, _ in turns]
        bare = [within(result["gaps"], turn) for _, turn in turns]
        self.stops_us = [gap[1] / 1e3 for gaps in recorded for gap in gaps if gap[2]]
        self.seconds = sum(end - begin for (begin, end), _ in turns) / 1e9
        # Of each turn less the bare one beside it, us a second.
        self.more_us = [us_per_second(gaps, turn) - us_per_second(without, other) for gaps, without, (turn, other) in zip(recorded, bare, turns)]


def within(gaps, turn):
    """The gaps that began in a turn."""
    return [gap for gap in gaps if turn[0] <= gap[0] < turn[1]]


def us_per_second(gaps, turn):
    """The time in gaps, us per second of a turn."""
    return sum(gap[1] for gap in gaps) / 1e3 / ((turn[1] - turn[0]) / 1e9)


def in_turns(tool, pid, seconds):
    """Records for `seconds` in all, every other turn: [(recorded turn, bare turn)] in ns, and the recording."""
    with tool.attach(pid) as run:
        time.sleep(SETTLE_S)
        pairs = []
        for number in range(round(seconds / TURN_S)):
            turns = {}
            # There and back again: a drift of the machine falls on both alike.
            for is_recorded in (True, False) if number % 2 == 0 else (False, True):
                run.resume() if is_recorded else run.suspend()
                time.sleep(BETWEEN_S)
                begin = time.monotonic_ns()
                time.sleep(TURN_S)
                turns[is_recorded] = (begin, time.monotonic_ns())
            pairs.append((turns[True], turns[False]))
        run.resume()
        run.finish()
    return pairs, getattr(run, "recording", None)


def spin_in_turns(tool, sleepers, seconds):
    """One run of the probe under torchspy, or plain stops, recorded for `seconds` in all, every other turn."""
    with Target.python("probe.py", "--sleepers", sleepers) as target:
        target.go()
        pairs, recording = in_turns(tool, target.pid, seconds)
        target.signal()
        quality = tool.report(recording)["quality"] if recording else None
        return FeltInTurns(target.read_json(), pairs, quality)


def spin_peer(tool, sleepers, seconds):
    """One run under a peer. py-spy --native ends at its first sample where libunwind meets what it cannot unwind: said, and run again."""
    for _ in range(4):
        try:
            return spin_once(tool, sleepers, seconds)
        except Failed as error:
            print(f"    {tool.name} failed and is run again: {str(error).splitlines()[1:2]}", flush=True)
    return spin_once(tool, sleepers, seconds)


def spin_once(tool, sleepers, seconds):
    """One run of the probe under a peer (None: bare)."""
    with Target.python("probe.py", "--sleepers", sleepers) as target:
        target.go()
        if tool is None:
            time.sleep(seconds)
            target.signal()
            return Felt(target.read_json())
        with tool.attach(target.pid, seconds) as run:
            run.wait(seconds + 60)
            target.signal()
            felt = Felt(target.read_json())
            felt.lost = tool.lost(run)
            return felt


class Summary:
    """All runs of one tool at one number of sleepers, less what the bare probe feels."""

    def __init__(self, runs, bare):
        # A tick that was sampled is a stop that was felt: the same count for every tool, and none
        # of the tools' own.
        self.lengths = [length for run in runs for length in run.stops_us]
        self.stops = len(self.lengths)
        self.stop_only_us = sum(self.lengths) / max(self.stops, 1)
        self.rate = self.stops / sum(run.seconds for run in runs)
        if isinstance(runs[0], FeltInTurns):
            # The middle of them: a machine that others share stands still now and then, for longer
            # than all stops together.
            all_us = [more for run in runs for more in run.more_us]
            more_us, error_us = middle_mean(all_us)
            self.per_tick_us, self.noise_us = more_us / max(self.rate, 1), error_us / max(self.rate, 1)
            self.plain_us = sum(all_us) / len(all_us) / max(self.rate, 1)
            return
        # Medians over the rounds, for the same reason.
        idle_per_second = [run.all_us / run.seconds for run in bare]
        idle = median(idle_per_second)
        each_us = [(run.all_us - idle * run.seconds) / max(len(run.stops_us), 1) for run in runs]
        self.per_tick_us, self.plain_us = median(each_us), sum(each_us) / len(each_us)
        # By how much the bare runs differ from their own median, as a time per tick: what lies
        # below it is not resolved.
        self.noise_us = median([abs(each - idle) for each in idle_per_second]) / max(self.rate, 1)

    def line(self):
        """The figures in words."""
        lengths = self.lengths
        return (
            f"{self.per_tick_us:.0f} us/tick (uncertain by {self.noise_us:.0f}; mean of all {self.plain_us:.0f}); stops alone {self.stop_only_us:.0f} us, p50 {median(lengths):.0f}"
            f" p99 {quantile(lengths, 0.99):.0f} max {max(lengths, default=0):.0f} us; {self.stops} stops, {self.rate:.0f}/s"
        )


def spin(table, tools, quick):
    """Alternates the tools on the probe; returns the summaries by (tool's name, sleepers)."""
    seconds, rounds = (3, 1) if quick else (10, 5)
    summaries = {}
    for sleepers in SLEEPERS:
        runs = {tool.name: [] for tool in tools}
        bare = []
        for number in range(rounds):
            # The order turns with each round, so that none is always the one that runs first.
            order = [None, *tools]
            for tool in order[number % len(order) :] + order[: number % len(order)]:
                run = {None: spin_once, profilers.PySpy: spin_peer}.get(tool and type(tool), spin_in_turns)
                felt = run(tool, sleepers, seconds)
                (bare if tool is None else runs[tool.name]).append(felt)
        idle = 100 * sum(run.all_us for run in bare) / sum(run.seconds for run in bare) / 1e6
        table.stated(f"bare probe, {sleepers} sleepers: time in gaps > 5 us", f"{idle:.2f} %")
        if idle > 3:
            print("    this machine is not quiet: what is left after the bare runs are taken off is mostly noise", flush=True)
        for tool in tools:
            found = runs[tool.name]
            if not any(run.stops_us for run in found):
                raise Failed(f"the probe felt no stop at all under {tool.name}")
            summary = summaries[tool.name, sleepers] = Summary(found, bare)
            print(f"    {tool.name}, {sleepers} sleepers: {summary.line()}", flush=True)
            if isinstance(tool, profilers.PlainStops):
                continue
            if isinstance(tool, profilers.TorchSpy):
                ticks = max(1, sum(run.ticks for run in found))
                # Fresh captures count every thread; the running one is told by the stops that it
                # felt.
                share = min(sum(run.fresh_captures for run in found), sum(run.felt for run in found)) / ticks
                table.at_least(f"fresh captures per tick, {sleepers} sleepers", share, 0.95)
                continue
            lost = [run.lost for run in found if run.lost]
            if lost:
                print(f"    {tool.name} itself counted {sum(l[0] for l in lost)} samples and {sum(l[1] for l in lost)} errors", flush=True)
    return summaries


def judge_ratio(table, bar, one, other, limit, form):
    """A bar on two summaries, by all gaps less the bare runs' and by stops alone: both must meet it."""
    smaller = min((one, other), key=lambda summary: summary.per_tick_us)
    if smaller.per_tick_us > 2 * smaller.noise_us:
        table.at_most(bar, one.per_tick_us / other.per_tick_us, limit, form)
    else:
        table.skip(bar, f"uncertain by {smaller.noise_us:.0f} us/tick, and {smaller.per_tick_us:.0f} was measured")
    table.at_most("    the same, stops alone", one.stop_only_us / other.stop_only_us, limit, form)


def judge(table, summaries):
    """The ratios and their bars."""
    for sleepers, limit in ((0, 1 / 8), (60, 1 / 80)):
        mine, peer = summaries.get(("torchspy", sleepers)), summaries.get(("py-spy --native", sleepers))
        bar = f"stopped time per tick / py-spy --native, {sleepers} sleepers"
        if mine and peer:
            judge_ratio(table, bar, mine, peer, limit, "{:.4f}")
        else:
            table.skip(bar, "torchspy or py-spy is missing")
        plain = summaries.get(("plain stops", sleepers))
        if mine and plain:
            text = f"{mine.per_tick_us / plain.per_tick_us:.2f}; stops alone {mine.stop_only_us / plain.stop_only_us:.2f}"
            table.stated(f"stopped time per tick / plain stops, {sleepers} sleepers", text)
    few, many = summaries.get(("torchspy", 0)), summaries.get(("torchspy", 60))
    if few and many:
        judge_ratio(table, "stopped time per tick, 60 sleepers / none", many, few, 1.5, "{:.3f}")
        for sleepers, summary in ((0, few), (60, many)):
            lengths = summary.lengths
            table.stated(f"stop p99 / max, {sleepers} sleepers", f"{quantile(lengths, 0.99):.0f} / {max(lengths):.0f} us")


def epoll_once(tool, timeout_ms, work_us, seconds):
    """(calls, EINTRs) of a thread in epoll_wait under `tool`."""
    with Target.python("probe.py", "--mode", "epoll", "--timeout-ms", timeout_ms, "--work-us", work_us) as target:
        target.go()
        with tool.attach(target.pid, seconds) as run:
            run.wait(seconds + 60)
            target.signal()
            counts = target.read_json()["epoll"]
            return counts["calls"], counts["eintr"]


def interrupted_waits(table, tools, quick):
    """EINTRs in epoll_wait, longer and shorter than a tick."""
    seconds = 3 if quick else 11  # 1,000 ticks and some
    for tool in tools:
        mine = isinstance(tool, profilers.TorchSpy)
        calls, eintr = epoll_once(tool, 50, 0, seconds)
        bar = f"EINTRs in epoll_wait(50 ms), {tool.name}, {seconds * 100} ticks"
        if mine:
            table.at_most(bar, eintr, 0, "{:.0f}", f" of {calls}")
        else:
            table.stated(bar, f"{eintr} of {calls}")
        calls, eintr = epoll_once(tool, 1, 300, seconds)
        table.stated(f"EINTRs in epoll_wait(1 ms) + 300 us work, {tool.name}", f"{eintr} of {calls} ({100 * eintr / max(calls, 1):.2f} %)")


def measure(table, folder, quick):
    """Bar 1."""
    table.heading("1. Stops (100 Hz, native + Python; the gaps of a thread that spins on the clock)")
    tools = []
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("torchspy's stops", missing)
    else:
        tools.append(profilers.TorchSpy(folder))
    tools.append(profilers.PlainStops(folder))
    pyspy = profilers.pyspy_path()
    if pyspy:
        tools.append(profilers.PySpy(folder, pyspy, native=True))
        tools += [] if quick else [profilers.PySpy(folder, pyspy, native=False)]
    else:
        table.skip("py-spy's stops", "no py-spy (scripts/torch-env peers)")
    judge(table, spin(table, tools, quick))
    interrupted_waits(table, [tool for tool in tools if tool.name not in ("py-spy", "plain stops")], quick)
