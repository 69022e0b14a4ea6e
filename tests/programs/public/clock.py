"""A clock that a training script carries: it says which phase begins, and counts its own steps and epochs.

The scripts beside it have the shape of well-known public examples: the same nets, loops and calls, written anew and made small, with data that
they make themselves. `--clock FILE` is where each process writes what it counted, `FILE.RANK` for other ranks than the first.
"""

import argparse
import json
import os
import time


class Clock:
    """Wall time by phase, from the loop's beginning to its end."""

    def __init__(self):
        self.spent, self.phase, self.since = {}, None, 0.0
        self.steps = self.epochs = 0

    def enter(self, phase):
        """A phase begins, and with it the one before ends; None: the loop is over."""
        now = time.perf_counter()
        if self.phase is not None:
            self.spent[self.phase] = self.spent.get(self.phase, 0.0) + now - self.since
        self.phase, self.since = phase, now

    def write(self, path, rank=0):
        """Ends, and writes the file."""
        self.enter(None)
        told = {"pid": os.getpid(), "steps": self.steps, "epochs": self.epochs, "phases": self.spent}
        with open(f"{path}.{rank}" if rank else path, "w", encoding="utf-8") as file:
            json.dump(told, file)


def options(**defaults):
    """The script's options: --clock and these."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", default="/dev/null")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()
