"""Part 3: classification. Phases on real runs of six kinds, against what the scripts themselves wrote down; activities on stacks that
were labelled by hand.

Phases: each script logs its switches (tests/programs/labelled/switches.py) and is recorded at 250 Hz from its start to its end. A look
stands for four milliseconds, at a random moment of them, and may come late. Where a switch lies within these, or two milliseconds to either side,
there is no one true phase: such polls are left out of precision and recall, counted, and only checked to be one of the phases that
lie there. Weights are time.

Unclassified is time whose activity is not known, and time in phase `user` that no code of the user's accounts for: whose nearest
frames are a framework's own. What the user's code accounts for is listed by its name. The phase `framework` is what the scripts have as
`user`, for their clocks do not tell the two apart; its share is printed.

Activities: tests/analysis/classes.rs classifies the labelled stacks of tests/fixtures/classes again and prints their matrix; it is run from here.
"""

import bisect
import collections
import json
import os
import re
import subprocess

import profilers
import recorded
from targets import ROOT, Failed, program

RATE = 250
# A look may come later than its time; on a busy machine its thread stops later still.
MARGIN_NS = 2_000_000
PHASES = ("input", "forward", "backward", "optimizer", "communication", "compile", "checkpoint", "startup", "user")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# (name, script, words before the script, environment it needs)
RUNS = (
    ("plain loop", "plain.py", (), "torch"),
    ("torchvision", "vision.py", (), "frameworks"),
    ("transformers", "transformer.py", (), "frameworks"),
    ("Lightning", "lit.py", (), "frameworks"),
    ("DDP on Gloo", "ddp.py", TORCHRUN, "torch"),
    ("torch.compile", "compiled_model.py", (), "torch"),
)
# Machinery that runs a training for its user: where it stands nearer to the leaf than the user's
# code, time is not the user's own. A library that the user calls by himself, such as for a model's
# construction, is no such thing.
FRAMEWORKS = ("lightning/", "lightning_fabric/", "pytorch_lightning/", "transformers/train", "transformers/integrations/", "accelerate/")
LEAST_SHARE = 0.005
TID = re.compile(r"\(pid \d+, tid (\d+)\)$")


class Truth:
    """What a script says of its main thread."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            log = json.load(file)
        self.tid, self.end_ns = log["tid"], log["end_ns"]
        own = [switch for switch in log["switches"] if switch[2] == self.tid]
        # From `sure` on until the next `before` it is in the phase, and nowhere else.
        self.before = [switch[0] for switch in own]
        self.sure = [switch[1] for switch in own]
        self.phases = [switch[3] for switch in own]

    def of(self, start_ns, end_ns):
        """(the one phase of a stretch or None, all phases that it holds)."""
        # Switches that begin before the stretch ends.
        after = bisect.bisect_left(self.before, end_ns)
        first = bisect.bisect_right(self.sure, start_ns)
        phase_before = self.phases[first - 1] if first else "startup"
        if after <= first:
            return phase_before, {phase_before}
        return None, {phase_before, *self.phases[first:after]}


class Reported:
    """What torchspy says of a thread: its phase, and who accounts for it, at every moment."""

    def __init__(self, file, tid):
        for profile in file["profiles"]:
            found = TID.search(profile["name"])
            if found and int(found[1]) == tid:
                break
        else:
            raise Failed(f"thread {tid} is in none of {[profile['name'] for profile in file['profiles']]}")
        self.frames = file["shared"]["frames"]
        self.starts, self.stacks, at = [], [], 0
        for stack, weight in zip(profile["samples"], profile["weights"]):
            self.starts.append(at)
            self.stacks.append(tuple(stack))
            at += weight
        self.accounts = {}

    def at(self, offset_ns):
        """(phase, stack) at a moment after the recording's start; (None, ()) where nothing was sampled."""
        index = bisect.bisect_right(self.starts, offset_ns) - 1
        stack = self.stacks[index] if index >= 0 else ()
        return (self.frames[stack[0]]["name"].strip("[]"), stack) if stack else (None, ())

    def account(self, stack):
        """(whether the user's own code accounts for a stack in phase user, its name)."""
        if stack not in self.accounts:
            self.accounts[stack] = self._account(stack)
        return self.accounts[stack]

    def _account(self, stack):
        framework = None
        for index in reversed(stack):
            frame = self.frames[index]
            name, _, kind = frame["name"].rpartition(" · ")
            file = frame.get("file", "")
            if kind == "your code" and "/labelled/switches.py" not in file:
                own = f"{name} ({os.path.basename(file)})"
                return (False, f"{framework}, called by {own}") if framework else (True, own)
            if framework is None and file.startswith(FRAMEWORKS):
                framework = f"{name} ({file})"
        return False, framework or "no frame of the user's"


class Run:
    """Looks of one main thread: (true phase, reported phase) to ns, and what is counted besides."""

    def __init__(self, truth, recording, file):
        dump = recorded.Dump(recording)
        reported = Reported(file, truth.tid)
        self.cells = collections.Counter()
        self.left_out_ns = self.left_out_wrong_ns = self.all_ns = self.user_unknown_ns = self.framework_ns = 0
        self.users, self.examples = collections.Counter(), {}
        for sample in dump.samples(truth.tid):
            if sample.start_ns >= truth.end_ns:
                break
            weight = sample.end_ns - sample.start_ns
            # The dump has microseconds: its middle lies within the sample for certain.
            phase, stack = reported.at((sample.start_ns + sample.end_ns) // 2 - dump.start_ns)
            self.all_ns += weight
            if phase == "framework":
                self.framework_ns += weight
                phase = "user"
            elif phase == "user":
                own, name = reported.account(stack)
                self.users[(own, name)] += weight
                self.user_unknown_ns += 0 if own else weight
            true, possible = truth.of(sample.start_ns - MARGIN_NS, sample.end_ns + MARGIN_NS)
            if true is None:
                self.left_out_ns += weight
                self.left_out_wrong_ns += 0 if phase in possible else weight
                continue
            self.cells[(true, phase)] += weight
            if true != phase:
                names = [reported.frames[index]["name"] for index in stack if " · " in reported.frames[index]["name"]]
                example = self.examples.setdefault((true, phase), collections.Counter())
                example[" > ".join(names[-12:])] += weight


def pythons():
    """Environment's name to its Python; those that are not there and may not be made are left out."""
    found = {}
    for kind in ("torch", "frameworks"):
        if os.environ.get("TORCHSPY_NO_TORCH"):
            break
        done = subprocess.run([os.path.join(ROOT, "scripts", "torch-env"), kind], stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            found[kind] = done.stdout.strip()
    return found


def recorded_runs(tool, folder, python, script, words, seconds):
    """The Runs of one script: one for each rank. And the report's unclassified share of each of them."""
    log = os.path.join(folder, f"{script}.json")
    target = [python, *words, program(os.path.join("labelled", script)), "--seconds", str(seconds), "--switches", log]
    with tool.launch(target, RATE, ("--max-stopped", "off")) as run:
        run.wait(seconds + 400)
    logs = [log] if os.path.exists(log) else sorted(
        os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(f"{script}.json.")
    )
    if not logs:
        raise Failed(f"{script} wrote no log\n{run.said()[-2000:]}")
    file, report = recorded.speedscope(run.recording), tool.report(run.recording)
    found = []
    for path in logs:
        truth = Truth(path)
        own = next(process for process in report["processes"] if process["training_tid"] == truth.tid)
        found.append((Run(truth, run.recording, file), own["activities"].get("unclassified", 0.0)))
        os.unlink(path)
    return found


def matrix(cells):
    """Prints a confusion matrix, in percent of all."""
    whole = sum(cells.values()) or 1
    true = [phase for phase in PHASES if any(key[0] == phase for key in cells)]
    reported = [phase for phase in PHASES if any(key[1] == phase for key in cells)]
    print(f"    {'true, reported as':<15}" + "".join(f"{phase[:10]:>11}" for phase in reported))
    for phase in true:
        row = "".join(f"{100 * cells[(phase, other)] / whole:>11.2f}" if cells[(phase, other)] else f"{'-':>11}" for other in reported)
        print(f"    {phase:<15}{row}", flush=True)


def judge(table, cells):
    """Precision and recall of each phase that is seen often enough to be judged."""
    whole = sum(cells.values()) or 1
    for phase in PHASES:
        true = sum(ns for key, ns in cells.items() if key[0] == phase)
        reported = sum(ns for key, ns in cells.items() if key[1] == phase)
        both = cells[(phase, phase)]
        if max(true, reported) < LEAST_SHARE * whole:
            table.stated(f"{phase}: too little of it to be judged", f"{100 * true / whole:.2f} %")
            continue
        table.at_least(f"{phase} ({100 * true / whole:.1f} %): precision", 100 * both / reported if reported else 0.0, 95, "{:.1f} %")
        table.at_least("    recall", 100 * both / true if true else 0.0, 95, "{:.1f} %")


def say(run, unclassified):
    """Who accounts for the time in phase user, and where a phase was reported wrong."""
    for (own, name), ns in run.users.most_common(8):
        share = 100 * ns / run.all_ns
        if share >= 0.1:
            print(f"    {'user' if own else 'not classified'}: {share:5.2f} % {name}")
    wrong = sorted(((ns, key) for key, ns in run.cells.items() if key[0] != key[1]), reverse=True)
    for ns, (true, reported) in wrong[:6]:
        share = 100 * ns / run.all_ns
        if share >= 0.1:
            example, part = run.examples[(true, reported)].most_common(1)[0]
            print(f"    {share:5.2f} % is {true} and reported as {reported}; most of it ({100 * part / ns:.0f} %): {example[-300:]}")
    print(flush=True)


def activities(table, quick):
    """The matrix of tests/analysis/classes.rs."""
    done = subprocess.run(
        ["cargo", "test", "--quiet", "--locked", "--test", "analysis", "--", "classes::", "--nocapture"],
        cwd=ROOT, capture_output=True, text=True, timeout=1800,
    )
    shown = [line for line in done.stdout.splitlines() if line.startswith("    ")]
    print("\n".join(shown), flush=True)
    figures = [re.match(r"    (\S+) .*precision ([\d.]+) %, recall ([\d.]+) %", line) for line in shown]
    for figure in filter(None, figures):
        kind = "phase of a labelled stack" if figure[1] in PHASES else "activity"
        table.at_least(f"{kind} {figure[1]}: the lesser of precision and recall", min(float(figure[2]), float(figure[3])), 95, "{:.1f} %")
    if done.returncode != 0 or not any(figures):
        raise Failed(f"cargo test --test analysis classes: exit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")


def measure(table, folder, quick):
    """Classification."""
    table.heading("3. Classification (phases by the scripts' own switches; activities by stacks labelled by hand)")
    found, missing = pythons(), profilers.torchspy_missing()
    if missing:
        table.skip("classes", missing)
        return
    tool, together = profilers.TorchSpy(folder), collections.Counter()
    for name, script, words, kind in RUNS[:1] if quick else RUNS:
        if kind not in found:
            table.skip(f"{name}: phases", f"no {kind} environment")
            continue
        runs = recorded_runs(tool, folder, found[kind], script, words, 6 if quick else 20)
        for rank, (run, unclassified) in enumerate(runs):
            label = name if len(runs) == 1 else f"{name}, rank {rank}"
            right = sum(ns for key, ns in run.cells.items() if key[0] == key[1])
            table.stated(f"{label}: polls whose phase is reported right", f"{100 * right / max(1, sum(run.cells.values())):.2f} %")
            table.at_most(f"{label}: unclassified", 100 * (unclassified + run.user_unknown_ns / run.all_ns), 3, "{:.2f} %")
            table.stated("    phase framework", f"{100 * run.framework_ns / run.all_ns:.2f} %")
            left_out = 100 * run.left_out_ns / run.all_ns
            wrong = 100 * run.left_out_wrong_ns / run.all_ns
            table.stated("    left out: a switch is too near", f"{left_out:.1f} % of time")
            table.stated("    of these, reported as a phase that is not near", f"{wrong:.2f} % of time")
            matrix(run.cells)
            say(run, unclassified)
            # Each run has the same say, however long it is.
            whole = sum(run.cells.values()) * len(runs) or 1
            together.update({key: ns * 1_000_000 // whole for key, ns in run.cells.items()})
    if together:
        print("    all runs together")
        matrix(together)
        judge(table, together)
    activities(table, quick)
