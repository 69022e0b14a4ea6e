"""Part 1: operators' shares against torch.profiler's self CPU time: the same script, in separate runs that take turns.

torch.profiler writes down the beginning and the end of every operator on the thread that calls it: wall time, waits for
the OpenMP team included, as torchspy counts it. Its events that are no `aten::` operator (`Optimizer.step#…`,
`autograd::engine::evaluate_function: …`, a node's own name) are ranges around operators, and time between operators: they are
left out on its side, and time in no operator on ours. Both sides are shares of the time in `aten::` operators.

Its bias: an event costs it about a microsecond, part of which falls into the operator itself and part into the one that
called it. The script's operators are long enough (the mean is above 100 us) for that not to be seen.
"""

import collections
import math

import profilers
from targets import Failed, Target, torch_python

PREFIX = "aten::"
# (what it is, arguments of train_ops.py)
RUNS = (
    ("SGD, 1 thread", ("--optimizer", "sgd", "--threads", 1)),
    ("AdamW, 2 threads", ("--optimizer", "adamw", "--threads", 2)),
    ("fused AdamW, 2 threads", ("--optimizer", "fused-adamw", "--threads", 2)),
)
LARGE = 0.03
RATE = 100


def shares(times):
    """Times of `aten::` operators as shares of their sum."""
    own = {name: time for name, time in times.items() if name.startswith(PREFIX) and time > 0}
    whole = sum(own.values())
    if not whole:
        raise Failed(f"no operator among {sorted(times)[:10]}")
    return {name: time / whole for name, time in own.items()}


def distance(left, right):
    """Total variation distance of two sets of shares."""
    return sum(abs(left.get(name, 0) - right.get(name, 0)) for name in left.keys() | right.keys()) / 2


def noise(true, samples):
    """The distance that shares of as many independent samples have from the true ones, on average."""
    # The mean of |x| of a normal x is sqrt(2 / pi) of its standard deviation.
    return sum(math.sqrt(2 / math.pi * share * (1 - share) / samples) for share in true.values()) / 2


def recorded(tool, python, arguments, timeout):
    """One plain run under torchspy: own seconds by operator, and page faults."""
    with Target.python("train_ops.py", *arguments, python=python) as target:
        with tool.attach(target.pid, rate=RATE) as run:
            target.go()
            faults = target.read_json(timeout)["page_faults"]
            run.wait(120)
    rows = tool.report(run.recording)["ops"]
    if not rows:
        raise Failed("the report names no operator")
    return {row["name"]: row["self_s"] for row in rows}, faults


def profiled(python, arguments, timeout):
    """One run under torch.profiler: own microseconds by event, and page faults."""
    with Target.python("train_ops.py", *arguments, "--profile", python=python) as target:
        target.go()
        result = target.read_json(timeout)
        return result["self_cpu_us"], result["page_faults"]


def compare(table, tool, python, name, arguments, steps, rounds):
    """Records and profiles in turns, so that a machine that changes its speed changes both."""
    arguments = (*arguments, "--steps", steps)
    ours, theirs, single, faults = collections.Counter(), collections.Counter(), [], [0, 0]
    for _ in range(rounds):
        one, faults_here = recorded(tool, python, arguments, 600)
        ours.update(one)
        faults[0] += faults_here
        one, faults_here = profiled(python, arguments, 600)
        theirs.update(one)
        faults[1] += faults_here
        single.append(shares(one))
    sampled = sum(time for event, time in ours.items() if event.startswith(PREFIX)) * RATE
    own, true = shares(ours), shares(theirs)
    table.at_most(f"{name}: total variation distance, {sampled:.0f} samples", 100 * distance(own, true), 6, "{:.1f} %")
    names = own.keys() | true.keys()
    large = [event for event in names if max(own.get(event, 0), true.get(event, 0)) > LARGE]
    off = {event: 100 * (own.get(event, 0) - true.get(event, 0)) for event in names}
    worst = max(large, key=lambda event: abs(off[event]))
    table.at_most(f"    worst of {len(large)} above 3 %: {worst[len(PREFIX):]}", abs(off[worst]), 2, "{:.2f}", " points")
    table.stated("    that many samples alone would be off by", f"{100 * noise(true, sampled):.1f} %")
    if len(single) > 1:
        apart = max(distance(left, right) for left in single for right in single)
        table.stated("    torch.profiler's own runs, furthest apart", f"{100 * apart:.1f} %")
    a_step = [count / rounds / steps for count in faults]
    table.stated("    page faults a step, ours / torch.profiler's", f"{a_step[0]:.1f} / {a_step[1]:.1f}")
    print(f"    {'operator':<40}{'torchspy':>10}{'profiler':>10}{'off':>8}", flush=True)
    for event in sorted(large, key=lambda event: -true.get(event, 0)):
        print(f"    {event:<40}{100 * own.get(event, 0):>8.2f} %{100 * true.get(event, 0):>8.2f} %{off[event]:>+8.2f}")


def measure(table, folder, quick):
    """Operators' shares."""
    table.heading("1. Operators (shares of the time in operators, against torch.profiler's self CPU time)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("operators", missing)
        return
    tool = profilers.TorchSpy(folder)
    for name, arguments in RUNS[1:2] if quick else RUNS:
        compare(table, tool, python, name, arguments, 15 if quick else 600, 1 if quick else 3)
