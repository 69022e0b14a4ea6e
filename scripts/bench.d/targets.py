"""Starts the programs of tests/programs, waits for their "ready", tells them to go and to stop."""

import json
import os
import signal
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = os.path.join(ROOT, "tests", "programs")


class Failed(Exception):
    """A target or a profiler did not do what a measurement needs."""


def program(name):
    """The path of a test program."""
    return os.path.join(PROGRAMS, name)


def torch_python():
    """The Python that has torch, or None where it is not there and may not be made (TORCHSPY_NO_TORCH)."""
    if os.environ.get("TORCHSPY_NO_TORCH"):
        return None
    done = subprocess.run([os.path.join(ROOT, "scripts", "torch-env")], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


class Target:
    """A running program of tests/programs. A context manager: it never outlives its block."""

    def __init__(self, command, timeout=120):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.timeout = timeout
        line = self.read_line()
        if not line.startswith("ready"):
            self.end()
            raise Failed(f"{command}: said {line!r} and not ready")
        words = line.split()
        self.pid = int(words[1]) if len(words) > 1 else self.process.pid

    @classmethod
    def python(cls, name, *arguments, python=sys.executable, timeout=120):
        """A Python program of tests/programs."""
        return cls([python, program(name), *map(str, arguments)], timeout)

    def read_line(self, timeout=None):
        """The next line that it prints."""
        # A timer that ends the program turns a hang into an end of file.
        timer = threading.Timer(timeout or self.timeout, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise Failed(f"{self.command}: ended, or said nothing in {timeout or self.timeout} s; exit status {self.process.poll()}")
        return line.strip()

    def read_json(self, timeout=None):
        """The next line that it prints, parsed."""
        return json.loads(self.read_line(timeout))

    def go(self, word="go"):
        """Sends one line."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def signal(self, number=signal.SIGUSR1):
        """Sends a signal."""
        os.kill(self.pid, number)

    def end(self):
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Load:
    """Processes that spin, to make the machine a loaded one."""

    def __init__(self, count):
        self.spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.spinning:
            process.kill()
            process.wait()
