"""Part 8: public training examples, in the shape of tests/programs/public, against what they count and clock themselves.

Each runs alone and ends by itself: once with one OpenMP thread, once as torch has it. Phases are seconds of the report less the script's own, in
points of the script's loop: that one process and this one loop, start-up left out. Beside them stands the standard error that follows from the
loop's ticks; where a phase is beyond the limit by less than two of them, the script runs again, and the loops are taken together. The verdict's cause
is held against what the clock allows.
"""

import json
import os
import sys

import profilers
import recorded
from targets import PROGRAMS, Failed, torch_python

# Name, counters to be known (steps only where an optimizer makes them), phases that are reported
# together since a wrapper's collectives run inside them, causes that are right where no other
# process wants the CPUs, shorter form.
COMPUTES = ("host-compute-bound",)
BOTH = ("steps", "epochs")
RUNS = (
    ("large_batches", BOTH, (), ("input-bound",), ("--steps", 60)),
    ("mnist", BOTH, (), COMPUTES, ("--count", 640)),
    ("dcgan", BOTH, (), COMPUTES, ("--batches", 4)),
    ("imagenet", BOTH, (), (*COMPUTES, "CPU-starved"), ("--batches", 6)),
    ("nanogpt", ("steps",), (), COMPUTES, ("--steps", 8)),
    ("mingpt", BOTH, (), COMPUTES, ("--steps", 15)),
    ("reinforce", ("steps",), (), ("dispatch-bound", "Python-bound", *COMPUTES), ("--episodes", 20)),
    ("word_language_model", (), (), COMPUTES, ("--batches", 10)),
    ("mnist_hogwild", BOTH, (), (*COMPUTES, "CPU-starved"), ("--count", 640)),
    ("fsdp2_tutorial", ("steps",), ("forward", "backward", "communication"), ("communication-bound", *COMPUTES), ("--steps", 8)),
    ("ddp_tutorial", BOTH, ("forward", "backward", "communication"), ("communication-bound", *COMPUTES), ("--epochs", 5)),
)
PHASES = ("input", "forward", "backward", "optimizer", "checkpoint")
POINTS = 2
MOST_RUNS = 3


def clocks(path):
    """What each process that trains wrote, by pid."""
    folder, name = os.path.split(path)
    found = {}
    for each in sorted(os.listdir(folder)):
        if each == name or each.startswith(name + "."):
            with open(os.path.join(folder, each), encoding="utf-8") as file:
                reported = json.load(file)
            found[reported["pid"]] = reported
    if not found:
        raise Failed(f"{name}: no process wrote its clock")
    return found


def record(tool, python, folder, name, arguments, threads):
    """The report, the process that it is of, and what that process counted; None where it is of one that does not train."""
    clock = os.path.join(folder, f"{name}-{threads}.json")
    script = os.path.join(PROGRAMS, "public", f"{name}.py")
    environment = ["env", "-u", "OMP_NUM_THREADS"] if threads is None else ["env", f"OMP_NUM_THREADS={threads}"]
    with tool.launch([*environment, python, script, "--clock", clock, *map(str, arguments)]) as run:
        run.wait(900)
    report, reported = tool.report(run.recording), clocks(clock)
    primary = report["processes"][report["primary"]] if report["primary"] is not None else None
    return report, primary, reported.get(primary["pid"] if primary else None)


class Loops:
    """Time by phase in a script's loop, by its clock and by the report, s; that of all its runs."""

    def __init__(self, names):
        self.names, self.seconds, self.ticks = names, 0.0, 0.0
        self.true, self.said = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)

    def add(self, report, primary, reported):
        """One more run."""
        seconds = sum(reported["phases"].values())
        self.seconds += seconds
        self.ticks += report["quality"]["ticks"] * seconds / report["wall_s"]
        for names in self.names:
            self.true[names] += sum(reported["phases"].get(phase, 0.0) for phase in names)
            self.said[names] += sum(primary["phases"].get(phase, 0.0) * primary["wall_s"] for phase in names)

    def rows(self):
        """(phases, their share in %, points that they are off by, the standard error), of those that matter."""
        for names in self.names:
            true, said = (100 * of[names] / self.seconds for of in (self.true, self.said))
            if max(true, said) >= 0.5:
                yield names, true, said - true, recorded.standard_error(true, self.ticks)


def compare(table, tool, python, folder, run, threads, quick):
    name, counters, together, causes, short = run
    label = f"{name}, {'torch default' if threads is None else f'{threads} thread'}"
    report, primary, reported = record(tool, python, folder, name, short if quick else (), threads)
    if reported is None:
        table.at_most(f"{label}: the subject trains", 1, 0, "{:.0f}", " other process")
        return
    progress = report["progress"] or {}
    for key in BOTH:
        if key in counters:
            said, true = progress.get(key) or 0, reported[key]
            # "At least", a range, or the number itself.
            least = progress.get("more_epochs") if key == "epochs" else progress.get("counted_from_s") is not None
            most = progress.get(f"{key}_at_most") or (float("inf") if least else said)
            off = max(said - true, true - most, 0)
            shown = f"{said}" if most == said else f"{said} to {most}"
            table.at_most(f"{label}: {key}, {true} by its own count", off, 0, "{:.0f}", f" off ({shown})")
        elif progress.get(key):
            table.at_most(f"{label}: {key}, which cannot be known", progress[key], 0, "{:.0f}", " said")
    loops = Loops([(phase,) for phase in PHASES if phase not in together] + ([together] if together else []))
    loops.add(report, primary, reported)
    for _ in range(0 if quick else MOST_RUNS - 1):
        if not any(recorded.is_open(abs(off), error, POINTS) for _, _, off, error in loops.rows()):
            break
        again, same, clock = record(tool, python, folder, name, (), threads)
        if clock is not None:
            loops.add(again, same, clock)
    for names, true, off, error in loops.rows():
        shown = f"{label}: {' + '.join(names)}, {true:.1f} % of {loops.seconds:.1f} s, {loops.ticks:.0f} ticks"
        table.at_most(shown, abs(off), POINTS, "{:.1f}", f" points ({off:+.1f}, standard error {error:.1f})")
    verdict = report["verdict"] or {}
    # Where it says that no single one stands out, each that it names has to be right.
    found = [each["cause"] for each in verdict.get("found", [])]
    said = [verdict["cause"]] if verdict.get("cause") else found
    starved = primary["activities"]["cpu_wait"] >= 0.1
    allowed = (*causes, "CPU-starved") if starved else causes
    wrong = sum(cause not in allowed for cause in said) if said else 1
    table.at_most(f"{label}: verdict {', '.join(said) or 'none'}", wrong, 0, "{:.0f}", " wrong")


def measure(table, folder, quick):
    """Public training examples."""
    table.heading("8. Public training examples, rewritten (against their own counts and clocks)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("public training examples", missing)
        return
    tool = profilers.TorchSpy(folder)
    only = os.environ.get("TORCHSPY_PUBLIC", "").split()
    for run in RUNS:
        for threads in (1,) if quick else (1, None):
            if only and run[0] not in only:
                continue
            try:
                compare(table, tool, python, folder, run, threads, quick)
            except (Failed, OSError, ValueError, KeyError) as error:
                table.fail(f"{run[0]}: not measured", f"{type(error).__name__}: {error}")
    sys.stdout.flush()
