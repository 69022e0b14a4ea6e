"""Part alarms: `torchspy watch` and `torchspy agent` on a job that evaluates, writes checkpoints, compiles, pauses and waits for data (issue 20): none of it is a
hang, though nothing moves for three times as long as a hang must last here. At the end it does hang.

Each cycle has a new watch, since one that has seen a long standstill waits longer for the next, and begins with another part. The agent
is one for all of them, and is asked for its series `torchspy_hang` twice a second.
"""

import os
import subprocess
import tempfile
import threading

import profilers
from agent import Agent
from targets import Target, program, torch_python

CYCLES = 28
AFTER_S = 1


class Watch:
    """`torchspy watch` on a job, and how often it called a hang. A context manager."""

    def __init__(self, pid, folder):
        self.folder = tempfile.mkdtemp(dir=folder)
        self.alarms_file = os.path.join(self.folder, "alarms")
        command = [profilers.torchspy_path(), "watch", "--pid", str(pid), "--after", f"{AFTER_S}s", "--every", "200ms"]
        command += ["-o", os.path.join(self.folder, "hang"), "--on-hang", f"echo alarm >> {self.alarms_file}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = self.process.stderr.readline()

    def alarms(self):
        if not os.path.exists(self.alarms_file):
            return 0
        with open(self.alarms_file, encoding="utf-8") as file:
            return len(file.readlines())

    def wait(self, seconds):
        """Waits until it ends."""
        self.process.wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        _, rest = self.process.communicate(timeout=60)
        for line in rest.splitlines():
            print(f"    {line}", flush=True)


class Asked:
    """An agent whose alarms are counted. A context manager."""

    def __init__(self, folder):
        self.agent = Agent(folder, "--hang-after", f"{AFTER_S}s", "--every", "1s")
        self.count, self.hangs, self.over = 0, False, threading.Event()
        self.asking = threading.Thread(target=self.ask)

    def ask(self):
        while not self.over.wait(0.5):
            values, _ = self.agent.scrape()
            hangs = any(value for series, value in values.items() if series.startswith("torchspy_hang{"))
            self.count += hangs and not self.hangs
            self.hangs = hangs

    def __enter__(self):
        self.asking.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.asking.join()
        self.agent.__exit__()


def measure(table, folder, quick):
    cycles = 1 if quick else CYCLES
    table.heading(f"false alarms: standstills of a job that does not hang, where a hang is {AFTER_S} s without a move")
    torchrun = [torch_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program("working_day.py")]
    long, alarms, longest = 0, 0, 0.0
    with Target(torchrun, timeout=300) as target, Asked(folder) as asked:
        for cycle in range(cycles):
            with Watch(target.pid, folder) as watch:
                target.go(f"cycle {cycle}")
                seconds = target.read_json()
                alarms += watch.alarms()
            long += sum(value > AFTER_S for value in seconds.values())
            longest = max(longest, *seconds.values())
            print(f"  cycle {cycle}: {watch.alarms()} alarms, so far {asked.count} of the agent; {', '.join(f'{name} {value:.1f} s' for name, value in seconds.items())}", flush=True)
        by_agent = asked.count
        with Watch(target.pid, folder) as watch:
            target.go("hang")
            target.read_line()
            for _ in range(600):
                if watch.alarms() and asked.hangs:
                    break
                try:
                    watch.wait(0.2)
                except subprocess.TimeoutExpired:
                    pass
            found, found_by_agent = watch.alarms(), asked.hangs
    table.stated("parts that lasted longer than a hang must", f"{long} in {cycles} cycles, the longest {longest:.1f} s")
    table.at_most("alarms in them", alarms, 0, "{:.0f}")
    table.at_most("    of the agent", by_agent, 0, "{:.0f}")
    table.at_least("alarm at the hang in the end", found, 1, "{:.0f}")
    table.at_least("    of the agent", int(found_by_agent), 1, "{:.0f}")
