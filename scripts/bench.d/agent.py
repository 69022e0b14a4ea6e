"""The agent beside a trainer with 160 threads: its cost, its memory, and whether scrapes agree. An hour, so it runs only where it is named."""

import os
import subprocess
import sys
import threading
import time
import urllib.request

import profilers
from figures import median
from own import cpu_seconds, memory_mb
from targets import Failed, Target, torch_python

# Seconds between two scrapes, as Prometheus makes them.
SCRAPE = 15
JOB = f"bench-agent-{os.getpid()}"


class Agent:
    """An agent, with further options. A context manager."""

    def __init__(self, folder, *options):
        command = [profilers.torchspy_path(), "agent", "--listen", "127.0.0.1:0", "--ring", os.path.join(folder, "ring"), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.started = time.monotonic()
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise Failed("the agent ended at once")

    def scrape(self):
        """Values by series, and how long the answer took, s."""
        begin = time.monotonic()
        with urllib.request.urlopen(self.address, timeout=30) as answer:
            text = answer.read().decode()
        spent = time.monotonic() - begin
        if not text.endswith("# EOF\n"):
            raise Failed(f"a scrape is cut: {text[-200:]!r}")
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                values[series] = float(value)
        return values, spent

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()


def total(values, name):
    """The sum of a name's series."""
    return sum(value for series, value in values.items() if series.split("{")[0] == name)


def went_back(before, after):
    """Series of counters that are missing or lower than they were."""
    counts = [series for series in before if series.split("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    return [series for series in counts if after.get(series, -1) < before[series]]


def follow(agent, minutes):
    """Scrapes for so long: (own memory by scrape, answers' times, series that went back, the last scrape)."""
    memory, spent, back, last = [], [], [], {}
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        time.sleep(SCRAPE)
        if agent.process.poll() is not None:
            raise Failed(f"the agent ended with {agent.process.returncode}")
        values, took = agent.scrape()
        back += went_back(last, values)
        last = values
        spent.append(took)
        _, anonymous, rss = memory_mb(agent.process.pid)
        memory.append(anonymous)
        minute = (time.monotonic() - agent.started) / 60
        print(f"    minute {minute:.1f}: {anonymous:.1f} MB of its own, RSS {rss:.1f} MB, {len(values)} series", flush=True)
    return memory, spent, back, last


def measure(table, folder, quick):
    """Issue 20, bar 6: the agent's cost over an hour, or over --minutes."""
    minutes = 1 if quick else float(os.environ.get("TORCHSPY_BENCH_MINUTES") or 60)
    table.heading(f"6. the agent, {minutes:g} minutes on a torch script with about 160 threads and 20 short-lived ones a second (19 Hz)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("agent", missing)
        return
    os.environ["TORCHELASTIC_RUN_ID"] = JOB
    with Target.python("many_threads.py", "--steps", 10, "--omp", 1, "--churn", 20, python=python) as target, Agent(folder, "--job", JOB) as agent:
        del os.environ["TORCHELASTIC_RUN_ID"]
        steps = []

        def train():
            # A trainer that works for about half of the time: ten steps, and a pause.
            while not over.wait(0.5):
                target.go()
                steps.append(target.read_json()["steps"])

        over = threading.Event()
        busy = threading.Thread(target=train, daemon=True)
        busy.start()
        # Programs and libraries are read at the start, once.
        time.sleep(10 if quick else 60)
        cpu, since = cpu_seconds(agent.process.pid), time.monotonic()
        memory, spent, back, _ = follow(agent, minutes)
        share = 100 * (cpu_seconds(agent.process.pid) - cpu) / (time.monotonic() - since)
        whole = 100 * cpu_seconds(agent.process.pid) / (time.monotonic() - agent.started)
        over.set()
        busy.join()
        # What was sampled until now comes within two intervals.
        time.sleep(12)
        last, _ = agent.scrape()
        sampled_s = total(last, "torchspy_phase_seconds_total")
        wall_s = time.monotonic() - agent.started
        counted = total(last, "torchspy_steps_total")
    part = len(memory) // 6 or 1
    early, late = median(memory[part // 2 : part // 2 + part]), median(memory[-part:])
    table.at_most("agent: own CPU after the first minute", share, 1, "{:.2f} %", " of a core")
    table.stated("    with its start", f"{whole:.2f} % of a core")
    table.stated("    own memory, early and at the end", f"{early:.1f} MB, {late:.1f} MB")
    table.at_most("    growth of its memory", 100 * (late / early - 1), 5, "{:.1f} %")
    table.at_most("    counters that went back or were missing in a scrape", len(back), 0, "{:.0f}")
    table.stated("    a scrape: median, longest", f"{1e3 * median(spent):.1f} ms, {1e3 * max(spent):.1f} ms")
    table.stated("    seconds of the training thread by phase, of those since its start", f"{sampled_s:.0f} of {wall_s:.0f}")
    table.stated("    steps that it counted, of those that the trainer made", f"{counted:.0f} of {sum(steps)}")
    if back:
        print("\n".join(sorted(set(back))[:10]), file=sys.stderr)
