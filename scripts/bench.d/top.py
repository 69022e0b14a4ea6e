"""The bars of `top`: its first screen, its own CPU and memory, and what it costs the target beside `record`."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time

import profilers
import slowdown
from figures import median
from own import cpu_seconds, memory_mb
from targets import Failed, Target, torch_python

ROWS, COLUMNS = 40, 120


class Top:
    """torchspy top at a terminal of its own; a context manager."""

    def __init__(self, pid, rate=100):
        self.screen = []
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.leader = leader
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [profilers.torchspy_path(), "top", "--pid", str(pid), "--rate", str(rate)],
            stdin=follower, stdout=follower, stderr=follower,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )  # fmt: skip
        os.close(follower)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.leader, 65536)
            except OSError:
                return
            if not data:
                return
            self.screen.append((time.monotonic(), data))

    def drawn_after(self, part, timeout=30):
        """Seconds from the start until this was on the screen."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            shown = b""
            for when, data in list(self.screen):
                shown += data
                if part in shown:
                    return when - self.started
            if self.process.poll() is not None:
                raise Failed(f"top ended with {self.process.returncode}: {shown[-2000:]!r}")
            time.sleep(0.002)
        raise Failed(f"top drew no {part!r} in {timeout} s: {shown[-2000:]!r}")

    def forget(self):
        """Lets go of what was drawn so far."""
        self.screen.clear()

    def finish(self):
        """Ends it as a user does."""
        os.write(self.leader, b"q")
        if self.process.wait(60) != 0:
            raise Failed(f"top ended with {self.process.returncode}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.leader)


def first_screen(table, target, count):
    """From the start of torchspy to its first screen, and to the first function of the target on it."""
    screens, rows = [], []
    for _ in range(count + 1):
        with Top(target.pid) as top:
            screens.append(1000 * top.drawn_after(b"Functions"))
            rows.append(1000 * top.drawn_after(b"(many_threads.py:"))
            top.finish()
    # The first only warms the page cache.
    table.at_most(f"first screen, torch loaded: median of {count}", median(screens[1:]), 300, "{:.0f} ms")
    table.at_most("    with the target's functions on it", median(rows[1:]), 300, "{:.0f} ms")


def long_watch(table, target, seconds):
    """CPU and memory over a while, after a warm-up."""
    with Top(target.pid) as top:
        top.drawn_after(b"(many_threads.py:")
        warm_up = min(70, seconds / 2)
        time.sleep(warm_up)
        pid = top.process.pid
        cpu, since, before = cpu_seconds(pid), time.monotonic(), memory_mb(pid)
        time.sleep(seconds - warm_up)
        spent = time.monotonic() - since
        share, after = 100 * (cpu_seconds(pid) - cpu) / spent, memory_mb(pid)
        top.finish()
    table.at_most(f"torchspy's own CPU over {spent:.0f} s, 160 threads, 100 Hz", share, 8, "{:.1f} % of a core")
    table.stated("    its own memory, then and at the end", f"{before[1]:.0f} MB, {after[1]:.0f} MB")
    # Symbols of the target's libraries, from their files: the kernel takes such pages back when it
    # needs them.
    table.stated("    with pages of files that it alone reads", f"{before[0]:.0f} MB, {after[0]:.0f} MB")


def cost(table, target, folder, rounds):
    """The same work bare, under record and under top, in turn."""
    mine = profilers.TorchSpy(folder)
    ratios = {"record": [], "top": []}
    for number in range(rounds):
        walls = {}
        order = ["bare", "record", "top"]
        for what in order[number % 3 :] + order[: number % 3]:
            if what == "bare":
                walls[what] = slowdown.work(target, 12)
            elif what == "record":
                with mine.attach(target.pid) as run:
                    time.sleep(4)
                    walls[what] = slowdown.work(target, 12)
                    run.finish()
            else:
                with Top(target.pid) as top:
                    time.sleep(4)
                    walls[what] = slowdown.work(target, 12)
                    top.finish()
        for what in ratios:
            ratios[what].append(100 * (walls[what] / walls["bare"] - 1))
    for what, found in ratios.items():
        table.stated(f"slowdown under {what}: median of {rounds}, smallest, largest", f"{median(found):+.1f} %, {min(found):+.1f}, {max(found):+.1f}")


def measure(table, folder, quick):
    """Issue 5, bar 3."""
    table.heading("top, on a torch script with about 160 threads")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("top", missing)
        return
    with Target.python("many_threads.py", "--steps", 10, "--omp", 1, python=python) as target:
        slowdown.work(target)
        cost(table, target, folder, 1 if quick else 9)
        target.go(f"for {40 if quick else 420}")
        first_screen(table, target, 2 if quick else 9)
        long_watch(table, target, 12 if quick else 300)
