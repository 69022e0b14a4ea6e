"""What a recording holds, as `torchspy inspect` and `torchspy convert` tell it."""

import json
import math
import re
import subprocess

import profilers
from targets import Failed

WINDOW = re.compile(r"^from ([\d.]+) s \(monotonic; .*\), for ([\d.]+) s$", re.M)
THREAD = re.compile(r"^thread T\d+ of P(\d+): tid (\d+) ", re.M)
SAMPLE = re.compile(r"^  at (-?[\d.]+) s for ([\d.]+) s, (\d+) ticks, (S\d+|no stack), (\w+)/(\w+)(?:, syscall (\d+))?", re.M)


def standard_error(share, ticks):
    """Of a share in percent of so many ticks, each at a random moment, in points: where steps last many ticks it scatters by less."""
    return math.sqrt(share * (100 - share) / ticks) if ticks else float("inf")


def is_open(off, error, limit):
    """Whether what is off by more than `limit` may be so by scatter alone."""
    return limit < off <= limit + 2 * error


def _output(*arguments):
    command = [profilers.torchspy_path(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise Failed(f"{command}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def _ns(seconds):
    """A decimal number of seconds, exactly."""
    whole, _, part = seconds.partition(".")
    sign = -1 if whole.startswith("-") else 1
    return int(whole) * 10**9 + sign * int((part + "0" * 9)[:9])


class Sample:
    """One sample of a thread: the stretch that its look stands for."""

    __slots__ = ("start_ns", "end_ns", "ticks", "stack", "state", "capture", "syscall")

    def __init__(self, begin_ns, match):
        self.start_ns = begin_ns + _ns(match[1])
        self.end_ns = self.start_ns + _ns(match[2])
        self.ticks = int(match[3])
        self.stack = None if match[4] == "no stack" else match[4]
        self.state, self.capture = match[5], match[6]
        self.syscall = int(match[7]) if match[7] else None


class Dump:
    """`torchspy inspect --samples` of a recording, cut by thread."""

    def __init__(self, recording):
        self.text = _output("inspect", "--samples", recording)
        window = WINDOW.search(self.text)
        if not window:
            raise Failed(f"inspect {recording}: no window in {self.text[:400]!r}")
        self.start_ns = _ns(window[1])
        self.end_ns = self.start_ns + _ns(window[2])
        heads = list(THREAD.finditer(self.text))
        ends = [head.start() for head in heads[1:]] + [len(self.text)]
        self.threads = {int(head[2]): (head.start(), end) for head, end in zip(heads, ends)}

    def part(self, tid):
        """The text about one thread."""
        if tid not in self.threads:
            raise Failed(f"thread {tid} is not in the recording: {sorted(self.threads)}")
        start, end = self.threads[tid]
        return self.text[start:end]

    def samples(self, tid):
        """The samples of one thread, in order."""
        return [Sample(self.start_ns, match) for match in SAMPLE.finditer(self.part(tid))]


def speedscope(recording):
    """`torchspy convert --format speedscope`, every thread's waits included, parsed."""
    return json.loads(_output("convert", "--idle", "--plumbing", "--format", "speedscope", "-o", "-", recording))
