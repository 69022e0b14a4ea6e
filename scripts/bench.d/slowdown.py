"""Bar 2: how much longer a training step takes while it is recorded.

The script is judged with one intra-op thread. So it is the one whose figures the bar was set by: 68 s in place of 12 under
py-spy, 71 with --native, but 11.2 under py-spy --nonblocking, which uses most of a core itself: the script left a core idle.
With two OpenMP threads on two cores there is nothing left for a profiler, and whatever it uses of either core is waited for
on both; how much that is stands below, side by side with py-spy --nonblocking, which never stops anything.
"""

import bisect
import contextlib
import math
import time

import profilers
from figures import median, median_upper_bound, middle_mean
from targets import Failed, Load, Target, torch_python

# Where a stop's budget is off, running threads are stopped at every tick.
BUDGET_OFF = ("--max-stopped", "100")


# In a pair the script works on and on, and is recorded in turns: what the machine does to both
# sides is then the same. A shared host does equal work at one speed for some seconds and up to 1.4
# times slower for the next, so that many short turns, each compared with its neighbour, tell more
# than few long ones.
TURNS = 18
# How long a turn is looked at: its mean time of a step is that of the steps which lie in it whole.
# What torchspy does once a second (a segment is compressed and written) falls due a second after it
# goes on, and so once into each turn.
TURN_S = 1.0
# What comes between: a profiler that goes on looks at all threads anew, which is no part of what
# sampling costs. It is the same between bare turns.
BETWEEN_S = 0.1
# Of a turn with fewer whole steps nothing is measured: the machine stood still. So many of a
# variant's may be lost.
FEWEST_STEPS = 3
MOST_LOST = 1 / 4
# A pair's figure is the mean of the middle half of its turns' ratios (as logarithms: a ratio of
# noisy times is too large on average). A change of the machine's speed between two neighbours is
# then no part of it; a stop costs every turn alike. Turns that are bare on both sides are compared
# in the same way, and show what the figures are good to.
BARE_AGAIN = "bare against bare"
# So many rounds for each in which the variants behind the first have a turn: their bars are wider.
ROUNDS_OF_FIRST = 3
# A profiler gets so long to attach.
SETTLE_S = 1.0


def work(target, parts=1):
    """So many parts of the fixed work: their wall time, s."""
    wall = 0
    for _ in range(parts):
        target.go()
        wall += target.read_json(600)["wall_s"]
    return wall


def section(target, tool, settle_s=SETTLE_S, parts=1):
    """So many parts of the fixed work under a peer: their wall time, s."""
    with tool.attach(target.pid) as run:
        time.sleep(settle_s)
        wall = work(target, parts)
        run.finish()
    return wall


def pair(target, order, turns, turn_s, sparse):
    """Turns bare (None) and under each variant of `order`, while the target works on.

    {variant's name: its time of a step as a multiple of the bare one}, and the mean time of a bare step, s. Each variant is one
    recording, suspended while others have their turn; one without a tool is bare, too. Those whose name is in `sparse` have few
    turns.
    """
    looked_at, runs = {}, {}
    target.go("log")
    with contextlib.ExitStack() as stack:
        for turn in range(turns):
            # There and back again: a drift of the machine's speed falls on all alike.
            for variant in order if turn % 2 == 0 else reversed(order):
                name, tool, rate, options = variant or (None, None, None, None)
                if name in sparse and turn % ROUNDS_OF_FIRST:
                    continue
                if name in runs:
                    runs[name].resume()
                elif tool:
                    runs[name] = stack.enter_context(tool.attach(target.pid, rate=rate, options=options))
                    time.sleep(SETTLE_S)
                time.sleep(BETWEEN_S)
                begin = time.monotonic()
                time.sleep(turn_s)
                looked_at.setdefault(name, {})[turn] = (begin, time.monotonic())
                if tool:
                    runs[name].suspend()
        target.go("enough")
        ends = target.read_json()["ends"]
        for name, run in runs.items():
            run.resume()
            run.finish()
            last_quality[name] = profilers.TorchSpy.report(run.recording)["quality"]
    step_s = {name: {turn: mean_step_s(ends, *span) for turn, span in spans.items()} for name, spans in looked_at.items()}
    bare = step_s.pop(None)
    ratios = {}
    for name, steps in step_s.items():
        logs = [math.log(step / bare[turn]) for turn, step in steps.items() if step and bare[turn]]
        if len(logs) < (1 - MOST_LOST) * len(steps):
            raise Failed(f"{name}: only {len(logs)} of {len(steps)} turns of {turn_s} s hold {FEWEST_STEPS} steps")
        ratios[name] = math.exp(middle_mean(logs)[0])
    measured = [step for step in bare.values() if step]
    return ratios, sum(measured) / len(measured)


def mean_step_s(ends, begin, end):
    """The mean time of the steps that lie whole between two moments, s; None where they are too few."""
    within = ends[bisect.bisect_left(ends, begin) : bisect.bisect_right(ends, end)]
    if len(within) <= FEWEST_STEPS:
        return None
    return (within[-1] - within[0]) / (len(within) - 1)


def pairs(target, variants, count, turns=TURNS, turn_s=TURN_S):
    """`count` pairs. {variant's name: [ratio to bare]}, and the mean times of a bare step, s."""
    found = {name: [] for name, *_ in variants}
    bare_steps = []
    sparse = {name for name, *_ in variants[1:]} if turns >= 4 * ROUNDS_OF_FIRST else set()
    for number in range(count):
        order = [None, *variants]
        order = order[number % len(order) :] + order[: number % len(order)]
        ratios, bare = pair(target, order, turns, turn_s, sparse)
        bare_steps.append(bare)
        for name, ratio in ratios.items():
            found[name].append(ratio)
        said = ", ".join(f"{name} {100 * (ratios[name] - 1):+.2f} %" for name, *_ in variants)
        print(f"    pair {number + 1}: bare step {1000 * bare:.2f} ms, {said}", flush=True)
    return found, bare_steps


# The sampler's own figures of the last run of each variant, to state beside the ratios.
last_quality = {}


def judge(table, name, ratios, median_limit, upper_limit=None):
    """The bars of one variant."""
    middle, upper = 100 * (median(ratios) - 1), 100 * (median_upper_bound(ratios) - 1)
    table.at_most(f"slowdown, {name}: median of {len(ratios)}", middle, median_limit, "{:.2f} %")
    if upper_limit is None or len(ratios) < 3:
        table.stated("    95 % upper bound", f"{upper:.2f} %")
    else:
        table.at_most("    95 % upper bound", upper, upper_limit, "{:.2f} %")
    quality = last_quality.get(name)
    if quality:
        stopped, ticks = quality["stopped_share"], quality["ticks"]
        table.stated("    stopped share of the target's time / ticks", f"{100 * stopped:.2f} % / {ticks}")


def measure(table, folder, quick):
    """Bar 2."""
    table.heading("2. Slowdown of a torch script with about 160 threads (a step's time; in turns with bare ones)")
    python = torch_python()
    if python is None:
        table.skip("slowdown", "no torch environment")
        return
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("slowdown under torchspy", missing)
    mine = None if missing else profilers.TorchSpy(folder)
    count, turns = (2, 4) if quick else (20, TURNS)
    variants = []
    if mine:
        variants.append(("100 Hz", mine, 100, ()))
        variants.append(("1,000 Hz, budget off", mine, 1000, BUDGET_OFF))
        variants.append((BARE_AGAIN, None, None, None))
    with Target.python("many_threads.py", "--steps", 10, "--omp", 1, python=python) as target:
        work(target)
        if variants:
            ratios, bare_steps = pairs(target, variants, count, turns)
            table.stated("bare step: median", f"{1000 * median(bare_steps):.2f} ms")
            judge(table, "100 Hz", ratios["100 Hz"], 1.5, 2.5)
            judge(table, "1,000 Hz, budget off", ratios["1,000 Hz, budget off"], 10)
            again = [100 * (ratio - 1) for ratio in ratios[BARE_AGAIN]]
            table.stated(f"{BARE_AGAIN}: median of {len(again)}, smallest, largest", f"{median(again):+.2f} %, {min(again):+.2f}, {max(again):+.2f}")
        record_peers(table, folder, target, quick)
    if mine and not quick:
        saturated(table, folder, mine, python)
        budget(table, mine, python)
        crowded(table, mine, python)


def saturated(table, folder, mine, python):
    """Two OpenMP threads, and what feeds them, on as many cores: no CPU is left."""
    variants = [("2 OpenMP threads, 100 Hz", mine, 100, ()), ("2 OpenMP threads, 1,000 Hz", mine, 1000, BUDGET_OFF)]
    pyspy = profilers.pyspy_path()
    count, parts = 4, 16
    steps = 40
    with Target.python("many_threads.py", "--steps", steps, "--omp", 2, python=python) as target:
        work(target)
        ratios, bare_steps = pairs(target, variants, count, parts)
        for name, *_ in variants:
            table.stated(f"{name}: median of {count}", f"{100 * (median(ratios[name]) - 1):.1f} %")
        if pyspy:
            nonblocking = profilers.PySpy(folder, pyspy, native=False, nonblocking=True)
            step_s = section(target, nonblocking, parts=parts) / parts / steps
            table.stated("    py-spy --nonblocking, 100 Hz, one section", f"{100 * (step_s / median(bare_steps) - 1):.0f} %")


def record_peers(table, folder, target, quick):
    """The same section once under py-spy, for the record."""
    pyspy = profilers.pyspy_path()
    if pyspy is None:
        table.skip("slowdown under py-spy", "no py-spy (scripts/torch-env peers)")
        return
    for native in (False,) if quick else (False, True):
        tool = profilers.PySpy(folder, pyspy, native)
        parts = 1 if quick else 50
        bare = work(target, parts)
        # With --native it reads all symbols first.
        wall = section(target, tool, settle_s=3 if native else 1, parts=parts)
        table.stated(f"{tool.name} at 100 Hz, one section", f"{wall:.1f} s, bare {bare:.1f} s ({wall / bare:.2f}x)")


def budget(table, mine, python):
    """Running OpenMP threads, four a core here: within the --max-stopped budget of 2 %."""
    count, turns, turn_s, threads = 6, 4, 4, 8
    with Target.python("many_threads.py", "--steps", 10, "--omp", threads, "--sleepers", 0, python=python) as target:
        work(target)
        ratios, _ = pairs(target, [("8 OpenMP threads", mine, 100, ())], count, turns, turn_s)
    table.at_most("8 OpenMP threads: stopped share", 100 * last_quality["8 OpenMP threads"]["stopped_share"], 2, "{:.2f} %")
    table.stated("    slowdown: median", f"{100 * (median(ratios['8 OpenMP threads']) - 1):.2f} %")


def crowded(table, mine, python):
    """One OpenMP thread beside other programs, two a core here: what torchspy takes of a CPU, the script waits for."""
    count, turns, turn_s, busy = 6, 6, 4, 4
    name = f"beside {busy} busy processes"
    variants = [(name, mine, 100, ()), (BARE_AGAIN, None, None, None)]
    with Target.python("many_threads.py", "--steps", 10, "--omp", 1, python=python) as target:
        work(target)
        with Load(busy):
            ratios, _ = pairs(target, variants, count, turns, turn_s)
    judge(table, name, ratios[name], 2.5)
    again = [100 * (ratio - 1) for ratio in ratios[BARE_AGAIN]]
    table.stated(f"    {BARE_AGAIN}: median, smallest, largest", f"{median(again):+.2f} %, {min(again):+.2f}, {max(again):+.2f}")
