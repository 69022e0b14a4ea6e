"""Runs torchspy and py-spy on a target, by their command lines alone."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from targets import PROGRAMS, ROOT, Failed


def torchspy_path():
    """The torchspy that is measured: $TORCHSPY, else the release build of this checkout."""
    return os.environ.get("TORCHSPY") or os.path.join(ROOT, "target", "release", "torchspy")


def torchspy_missing():
    """Why torchspy cannot be run, or None."""
    path = torchspy_path()
    if not os.access(path, os.X_OK):
        return f"no torchspy at {path} (cargo build --release, or set TORCHSPY)"
    try:
        version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except OSError as error:
        return f"{path}: {error}"
    if version.returncode != 0 or "torchspy" not in version.stdout:
        return f"{path} --version said {version.stdout.strip()!r} and exited with {version.returncode}"
    return None


def pyspy_path():
    """The py-spy of scripts/torch-env peers, or $PYSPY; None where there is none and none can be made."""
    if os.environ.get("PYSPY"):
        return os.environ["PYSPY"]
    if os.environ.get("TORCHSPY_NO_PEERS"):
        return None
    done = subprocess.run([os.path.join(ROOT, "scripts", "torch-env"), "peers"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None
    path = os.path.join(os.path.dirname(done.stdout.strip()), "py-spy")
    return path if os.access(path, os.X_OK) else None


class Run:
    """A profiler at work. `finish` ends it as a Ctrl-C would; a context manager: it never outlives its block."""

    def __init__(self, command, folder, variables=None):
        self.command = command
        self.log = os.path.join(folder, f"{os.path.basename(command[0])}-{time.monotonic_ns()}.log")
        self.started_ns = time.monotonic_ns()
        with open(self.log, "wb") as log:
            # A process group of its own, whose parent is in another one: such a group can be
            # suspended as from a terminal.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=os.setpgrp,
                env={**os.environ, **(variables or {})},
            )  # fmt: skip

    def said(self):
        """What it printed."""
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait(self, timeout):
        """Waits for its end; raises Failed where it failed or hung."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.command}: still running after {timeout} s\n{self.said()[-2000:]}") from error
        if status != 0:
            raise Failed(f"{self.command}: exit status {status}\n{self.said()[-2000:]}")
        return self

    def _await_state(self, stopped, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with open(f"/proc/{self.process.pid}/stat", encoding="utf-8", errors="replace") as file:
                if (file.read().rpartition(")")[2].split()[0] == "T") == stopped:
                    return
            time.sleep(0.01)
        raise Failed(f"{self.command}: {'ran' if stopped else 'stood'} on for {timeout} s\n{self.said()[-2000:]}")

    def suspend(self, timeout=30):
        """Suspends it as a Ctrl-Z would: it samples nothing, and uses no CPU."""
        self.process.send_signal(signal.SIGTSTP)
        self._await_state(True, timeout)

    def resume(self, timeout=30):
        """Lets it go on."""
        self.process.send_signal(signal.SIGCONT)
        self._await_state(False, timeout)

    def finish(self, timeout=60):
        """Ends it as a Ctrl-C would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait(timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class TorchSpy:
    """torchspy, and the recordings of one measurement."""

    name = "torchspy"

    def __init__(self, folder, engine=None):
        self.folder = folder
        self.engine = []
        if engine:
            self.engine, self.name = ["--engine", engine], f"torchspy --engine {engine}"

    def _output(self):
        return tempfile.mktemp(prefix="run-", suffix=".tspy", dir=self.folder)

    def attach(self, pid, duration=None, rate=100, options=(), variables=None):
        """Records a running process, with more variables in torchspy's environment. The Run has the recording's path as `.recording`."""
        recording = self._output()
        command = [torchspy_path(), "record", "--pid", str(pid), "--rate", str(rate), *self.engine, *options, "-o", recording]
        if duration is not None:
            command[4:4] = ["--duration", f"{duration:g}s"]
        run = Run(command, self.folder, variables)
        run.recording = recording
        return run

    def launch(self, target, rate=100, options=()):
        """Records a command from its start."""
        recording = self._output()
        run = Run([torchspy_path(), "record", "--rate", str(rate), *self.engine, *options, "-o", recording, "--", *target], self.folder)
        run.recording = recording
        return run

    @staticmethod
    def report(recording, *options):
        """`torchspy report --json` of a recording."""
        done = subprocess.run([torchspy_path(), "report", "--json", *options, recording], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise Failed(f"report --json {recording}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        try:
            return json.loads(done.stdout)
        except ValueError as error:
            raise Failed(f"report --json {recording}: {error}\n{done.stdout[:400]}") from error

    @staticmethod
    def weights(recording):
        """(seconds, looks) of every sample of a recording with one thread."""
        done = subprocess.run([torchspy_path(), "inspect", "--samples", recording], capture_output=True, text=True, timeout=120)
        found = re.findall(r"^  at [0-9.]+ s for ([0-9.]+) s, ([0-9]+) ticks", done.stdout, re.MULTILINE)
        if not found:
            raise Failed(f"inspect --samples {recording}: no samples\n{done.stderr[-2000:]}")
        return [(float(seconds), max(1, int(polls))) for seconds, polls in found]


class PlainStops:
    """No profiler: the bare stops of one, with a read of as much as torchspy reads of the probe."""

    name = "plain stops"
    BYTES = 12_000

    def __init__(self, folder):
        self.folder = folder

    def attach(self, pid, duration=None, rate=100):
        """Stops the first thread of a running process."""
        done = subprocess.run(
            [sys.executable, os.path.join(PROGRAMS, "compiled.py"), "plain_stops.c"], stdout=subprocess.PIPE, text=True, check=True
        )
        return Run([done.stdout.strip(), str(pid), str(rate), str(self.BYTES)], self.folder)


class PySpy:
    """py-spy, with or without --native or --nonblocking."""

    def __init__(self, folder, path, native, nonblocking=False):
        self.folder, self.path = folder, path
        self.flags = (["--native"] if native else []) + (["--nonblocking"] if nonblocking else [])
        self.name = " ".join(["py-spy", *self.flags])

    def attach(self, pid, duration=None, rate=100):
        """Records a running process."""
        output = tempfile.mktemp(suffix=".raw", dir=self.folder)
        command = [self.path, "record", "--pid", str(pid), "--rate", str(rate), "--format", "raw", "--output", output]
        command += self.flags
        command += ["--duration", str(max(1, round(duration)))] if duration is not None else ["--duration", "unlimited"]
        return Run(command, self.folder)

    @staticmethod
    def lost(run):
        """(samples, errors) as it counts them: samples per active thread, errors per failed capture."""
        found = re.search(r"Samples: (\d+) Errors: (\d+)", run.said())
        return (int(found[1]), int(found[2])) if found else None
