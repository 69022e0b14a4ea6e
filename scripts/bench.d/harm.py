"""What a recording must never do to its target: leave it stopped, hang with its execs, wake it from a SIGSTOP, take its signals, stop it
for long."""

import os
import random
import signal
import subprocess
import sys
import time

import profilers
from targets import PROGRAMS, Failed, Load, Target

SLEEPERS = 5000
BUSY = 20


def compiled(name):
    """The path of a C program of tests/programs, or None without a compiler."""
    command = [sys.executable, os.path.join(PROGRAMS, "compiled.py"), name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def states(pid):
    """State letters of a process's threads."""
    found = set()
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/stat", encoding="utf-8", errors="replace") as file:
            found.add(file.read().rpartition(")")[2].split()[0])
    return found


def await_states(pid, is_it, seconds):
    """Whether a process's threads come into such states within so long."""
    deadline = time.monotonic() + seconds
    while not is_it(states(pid)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def ends_well(target):
    """Whether a target ends with status 0 at the end of its input."""
    target.process.stdin.close()
    try:
        return target.process.wait(30) == 0
    except subprocess.TimeoutExpired:
        return False


def kills(table, mine, program, quick):
    """torchspy killed at random moments of a recording: a target of its own for every kill."""
    count, draw, harmed = 5 if quick else 100, random.Random(1), 0
    for _ in range(count):
        with Target([program, "8"]) as target:
            target.go("1")
            with mine.attach(target.pid, rate=1000) as run:
                time.sleep(draw.uniform(0.02, 0.5))
                run.process.kill()
                run.process.wait()
            runs_on = await_states(target.pid, lambda found: not found & {"T", "t"}, 5)
            target.read_json()
            harmed += not (runs_on and ends_well(target))
    table.at_most(f"targets harmed by {count} kills of torchspy", harmed, 0, "{:d}")


def group_stops(table, mine, program, quick):
    """SIGSTOP while recorded: the target stays stopped until SIGCONT, and goes on then."""
    count, harmed = 3 if quick else 30, 0
    with Target([program, "8"]) as target:
        with mine.attach(target.pid, rate=1000) as run:
            time.sleep(0.3)
            for _ in range(count):
                target.go("0.2")
                target.signal(signal.SIGSTOP)
                stopped = await_states(target.pid, lambda found: found <= {"T", "t"}, 5)
                time.sleep(0.1)
                stayed = await_states(target.pid, lambda found: found <= {"T", "t"}, 1)
                target.signal(signal.SIGCONT)
                target.read_json()
                harmed += not (stopped and stayed)
            run.finish()
        harmed += not ends_well(target)
    table.at_most(f"of {count} SIGSTOPs not as without torchspy", harmed, 0, "{:d}")


def loaded(table, mine, program, quick):
    """Stops on a machine with ten busy processes per CPU, as the budget has it."""
    seconds = 3 if quick else 30
    with Target([program, "8"]) as target, Load(BUSY):
        target.go(str(seconds))
        with mine.attach(target.pid, seconds - 1) as run:
            run.wait(seconds + 60)
        quality = mine.report(run.recording)["quality"]
        target.read_json()
    table.at_most(f"stopped share beside {BUSY} busy processes", 100 * quality["stopped_share"], 2, "{:.2f} %")
    table.stated("    longest stop, p99", f"{quality['stop_us']['max'] / 1e3:.1f}, {quality['stop_us']['p99'] / 1e3:.1f} ms")


def spun(target, seconds):
    """What the program says of so many seconds."""
    target.go(str(seconds))
    return target.read_json()


def signals(table, mine, program, quick):
    """The times that an interval timer went off, by its signals, as a share of those of a bare run."""
    seconds = 2 if quick else 20
    with Target([program, "8"]) as target:
        bare = spun(target, seconds)
        with mine.attach(target.pid, rate=1000) as run:
            time.sleep(0.5)
            recorded = spun(target, seconds)
            run.finish()
    kept = (recorded["alarms"] / recorded["seconds"]) / (bare["alarms"] / bare["seconds"])
    table.at_least("signals of a 2 ms timer at 1,000 Hz, of a bare run's", 100 * kept, 99, "{:.1f} %")


def sleepers(table, mine, program, quick):
    """Pauses of the one thread that runs among thousands that sleep."""
    seconds = 2 if quick else 20
    with Target([program, str(SLEEPERS)]) as target:
        bare = spun(target, seconds)
        # From its start: the first look at a process takes longest.
        target.go(str(seconds))
        with mine.attach(target.pid, seconds - 1) as run:
            run.wait(seconds + 60)
        recorded = target.read_json()
    for name, felt in (("bare", bare), ("recorded", recorded)):
        pauses = f"{felt['longest_ms']:.1f}, {felt['p50_ms']:.1f} ms of {felt['count']}"
        table.stated(f"pauses among {SLEEPERS:,} sleepers, {name}: longest, p50", pauses)
    more = (recorded["total_ms"] / recorded["seconds"] - bare["total_ms"] / bare["seconds"]) / 10
    table.at_most("    the share of time that they take, less the bare run's", more, 2, "{:.2f} %")


def execs(table, mine, program, quick):
    """A process that replaces itself again and again while threads of it run, each of them perhaps asked to stop."""
    lives = 200 if quick else 10_000
    storm = compiled("exec_storm.c")
    for rate in (1000,) if quick else (100, 1000):
        for origin in ("leader", "thread"):
            with Target([storm, str(lives), origin], 300) as target:
                with mine.attach(target.pid, rate=rate, options=("--max-stopped", "off")) as run:
                    time.sleep(0.5)
                    target.go()
                    word, done = target.read_line(300).split()
                    run.wait(60)
            stops = mine.report(run.recording)["quality"]["stops"]
            table.at_most(f"of {lives} execs by the {origin} at {rate} Hz, hung", lives - int(done) if word == "done" else lives, 0, "{:d}", f" ({stops} stops)")


def measure(table, folder, quick):
    """Each row: what must not happen, and how often it did."""
    table.heading("9. Harm")
    program = compiled("harm.c")
    missing = "no C compiler" if program is None else profilers.torchspy_missing()
    if missing:
        table.skip("harm", missing)
        return
    mine = profilers.TorchSpy(folder)
    for part in (kills, execs, group_stops, loaded, signals, sleepers):
        try:
            part(table, mine, program, quick)
        except Failed as error:
            table.fail(part.__name__, str(error))
