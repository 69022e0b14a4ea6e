"""The same scripts on the GPU and on the simulated node (docs/src/gpu-simulation.md), claim by claim.

A claim is what tests and accuracy figures on the node hold torchspy to. Each side says what it found and whether that is right; a claim
is met where it is right on every side that ran.
"""

import json
import math
import os
import re
import subprocess
import tempfile

import gpu
import node
import profilers
from targets import ROOT, Failed, Target, program

# What waits have to be called, by mark: the table of the node's own test.
EXPECTED = re.compile(r'\(\s*"(\w+)",\s*"(gpu_\w+)",\s*"([^"]+)",?\s*\)')
MARK = re.compile(r"# mark: (\w+)")
ROUNDS = 12
WAITS = {"gpus": [{"memory_total": 6 << 30}], "kernels": [{"name": "vectorized_elementwise", "us": 500.0}]}
KINDS = (
    "cnn", "gpt", "graphs", "inference", "accumulation", "checkpoint", "checkpoint_reentrant", "gan", "lora", "hooks", "caller", "two_devices",
    "amp",
)  # fmt: skip
TRIAL_STEPS = 8
# Of the time of all steps, and so many standard errors: as tests/cuda/backward.rs.
ALLOWED, ERRORS = 0.04, 3
PHASES = {"forward": ("forward",), "backward": ("backward", "recompute"), "optimizer": ("optimizer",)}
# Causes that lie in the script.
CAUSES = ("sync", "copy", "python", "launch", "storage", "workers", "transform")
SCRIPT, FILL_MS = "mlp", 100


class Hardware:
    """This machine's GPUs."""

    name = "GPU"

    def __init__(self, missing, devices):
        self.missing, self.devices = missing, devices

    def command(self, _, words):
        return [str(word) for word in words]

    def variables(self):
        return {}

    def fill(self, cause):
        """Options that make a GPU of any speed as busy as the scenario makes the node's. Small kernels leave it idle as they are."""
        return [] if cause == "launch" else ["--fill-ms", FILL_MS]


class Simulation:
    """A new node for each command. Its libraries come first: the machine's own devices are hidden."""

    name, devices = "simulation", 2

    def __init__(self, missing, folder):
        self.missing, self.folder, self.homes = missing, folder, []

    def command(self, scenario, words):
        self.homes.append(tempfile.mkdtemp(prefix="node-", dir=self.folder))
        return node.command(self.homes[-1], scenario, words)

    def variables(self):
        return node.variables(self.homes[-1])

    def fill(self, _):
        return []


class Claims:
    """Measures on both sides. `row` prints one claim: its name, and for each side its text and whether it is right (None: neither)."""

    def __init__(self, sides, python, seconds, folder, row):
        self.sides, self.python, self.seconds, self.folder, self.row = sides, python, seconds, folder, row
        self.tool = profilers.TorchSpy(folder)

    def launched(self, side, scenario, words):
        """What a program said, and the report of it, recorded from its start."""
        path = tempfile.mktemp(suffix=".tspy", dir=self.folder)
        command = side.command(scenario, [profilers.torchspy_path(), "record", "--force", "-o", path, "--", self.python, *words])
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise Failed(f"{command}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        try:
            return json.loads(done.stdout.splitlines()[-1]), self.tool.report(path)
        except ValueError as error:
            raise Failed(f"{command}: printed {len(done.stdout)} characters: {error}; they end {done.stdout[-80:]!r}") from error

    def of_all(self, measure, names):
        """By name, what each side measured: {name: (text, whether it is right)}, or why it did not."""
        found = []
        for side in self.sides:
            try:
                found.append(measure(side) if side.missing is None else dict.fromkeys(names, (f"not run: {side.missing}", None)))
            except (Failed, OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
                print(f"    {side.name}: {type(error).__name__}: {error}", flush=True)
                found.append(dict.fromkeys(names, (f"failed: {type(error).__name__}", False)))
        for name in names:
            self.row(name, *(each[name] for each in found))

    def waits(self):
        """Names of waits at marked lines."""
        with open(os.path.join(ROOT, "tests", "cuda", "waits.rs"), encoding="utf-8") as file:
            expected = {mark: (kind, what) for mark, kind, what in EXPECTED.findall(file.read())}
        with open(program("gpu_waits.py"), encoding="utf-8") as file:
            marks = {found[1]: number for number, line in enumerate(file, 1) if (found := MARK.search(line))}

        def measure(side):
            said, report = self.launched(side, WAITS, [program("gpu_waits.py"), ROUNDS])
            found = {}
            for mark, line in marks.items():
                rows = [row for row in report["waits"] if (row["at"] or {}).get("line") == line and row["kind"].startswith("gpu")]
                if mark in said and not said[mark]:
                    found[mark] = ("not comparable: memory", None)
                    continue
                best = max(rows, key=lambda row: row["seconds"], default=None)
                name = (best["kind"], best["what"]) if best else None
                spent = sum(end - start for start, end in said.get(mark, [])) / 1e9
                of_line = f" {sum(row['seconds'] for row in rows) / spent:.0%}" if spent else ""
                found[mark] = (f"{name[1] if name else 'no wait'}{of_line}", name == expected[mark] if mark in expected else None)
            return found

        self.of_all(measure, list(marks))

    def trained(self, side, kind):
        """A training of some seconds on a side: how many steps these are, it is tried for."""
        scenario = {"gpus": [{"uuid": f"GPU-51700000-0000-0000-0000-{number:012x}"} for number in range(2 if kind == "two_devices" else 1)]}
        words = [program("gpu_train.py"), "--model", kind, "--steps"]
        command = side.command(scenario, [self.python, *words, TRIAL_STEPS])
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        steps = json.loads(done.stdout.splitlines()[-1])["step_ns"]
        # The first ones warm up.
        each_s = (steps[-1][1] - steps[TRIAL_STEPS // 2][0]) / 1e9 / (len(steps) - TRIAL_STEPS // 2)
        return self.launched(side, scenario, [*words, max(math.ceil(self.seconds / each_s), TRIAL_STEPS)])

    def training(self):
        """Backward below its line, and phases against the script's own clock."""
        with open(program("gpu_train.py"), encoding="utf-8") as file:
            calls = {number for number, line in enumerate(file, 1) if ".backward()" in line}

        def below(report):
            table = report["backward"]
            if not table or not table["total_s"]:
                return "no backward", None
            own = [row for row in table["lines"] if row["file"].endswith("gpu_train.py") and row["line"] in calls]
            share = sum(row["total_s"] for row in own) / table["total_s"]
            return f"{share:.2%}", share > 0.999

        def phases(said, report):
            all_s = (said["step_ns"][-1][1] - said["step_ns"][0][0]) / 1e9
            captures = report["quality"]["training_hz"] * all_s
            texts, right = [], True
            for phase, names in PHASES.items():
                spent = sum(end - start for start, end in said["phases"][phase]) / 1e9 / all_s
                if not spent:
                    continue
                off = sum(report["phases"].get(name, 0) for name in names) * report["wall_s"] / all_s - spent
                right &= abs(off) <= ALLOWED + ERRORS * math.sqrt(spent * (1 - spent) / captures)
                texts.append(f"{100 * spent:.0f} ({100 * off:+.1f})")
            return ", ".join(texts) or "no phase", right if texts else None

        for kind in KINDS:
            names = [f"{kind}: backward below its line", f"{kind}: its phases"]

            def measure(side):
                if kind == "two_devices" and side.devices < 2:
                    return dict.fromkeys(names, ("not comparable: one device", None))
                said, report = self.trained(side, kind)
                return dict(zip(names, (below(report), phases(said, report))))

            self.of_all(measure, names)

    def causes(self):
        """Verdicts of planted causes."""
        for cause in CAUSES:

            def measure(side):
                words = gpu.words(self.python, SCRIPT, (cause,), 1.0, self.seconds + 3, 0) + side.fill(cause)
                with Target(side.command(gpu.scenario(SCRIPT, (cause,), 1.0), words), timeout=300) as target:
                    with self.tool.attach(target.pid, self.seconds, options=("--force",), variables=side.variables()) as run:
                        run.wait(self.seconds + 60)
                    target.read_json(300)
                    target.process.wait(60)
                verdict = self.tool.report(run.recording)["verdict"] or {}
                found = gpu.Run(SCRIPT, (cause,), 1.0, verdict, *[math.nan] * 4, {})
                said = found.said()
                name = " ".join(word for word in said if word) if said else "no single one"
                return {cause: (name, None if found.is_disturbed() else found.is_honest() or found.named() is not None)}

            self.of_all(measure, [cause])

    def refusals(self):
        """Calls that the doubles do not have."""
        for side in self.sides:
            if isinstance(side, Simulation) and side.missing is None:
                names = sorted({name for home in side.homes for name in node.refused(home)})
                print(f"  calls that the node refused: {', '.join(names) or 'none'}", flush=True)


PARTS = (
    ("names of waits at their lines, and the part of the lines' time that they are", Claims.waits),
    ("trainings: backward below its line; forward, backward, optimizer, % of the time (points off)", Claims.training),
    ("verdicts of planted causes", Claims.causes),
)


def compare(sides, python, seconds, folder, row):
    """All claims."""
    claims = Claims(sides, python, seconds, folder, row)
    for title, part in PARTS:
        print(title)
        part(claims)
    claims.refusals()
