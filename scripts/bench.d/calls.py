"""System calls that stops end early, and setuid programs that lose their privileges: what a recording must not do."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import profilers
from targets import PROGRAMS, Failed, Target

# Begun anew by the kernel, by torchspy's mending, or left running: none may be seen at the default
# rate.
KINDS = (
    "recv_timeout", "accept_timeout", "connect_timeout", "epoll_wait", "io_getevents", "semtimedop", "sigtimedwait", "nanosleep",
    "poll", "futex", "fallocate", "getrandom", "dev_zero", "pipe_write", "send", "recv_waitall",
)  # fmt: skip
CALLS = 10_000
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
SPAWNS = {"fork": 3000, "spawn": 0}


def built(name):
    """A C program of tests/programs."""
    done = subprocess.run([sys.executable, os.path.join(PROGRAMS, "compiled.py"), name], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    return done.stdout.strip()


def calls_once(tool, kind, calls, seconds, rate):
    """(calls, EINTRs, short ones, the recording's quality) of one kind; bare where `tool` is None."""
    with Target([built("calls_cut_short.c"), str(seconds), str(calls), "300", kind], seconds + 60) as target:
        run = tool and tool.attach(target.pid, rate=rate)
        if run:
            time.sleep(1)
        target.go()
        name, *counts = target.read_line().split()
        if name != kind:
            raise Failed(f"calls_cut_short: {name} and not {kind}")
        target.read_line()
    if not run:
        return (*map(int, counts), None)
    with run:
        run.wait(60)
        return (*map(int, counts), tool.report(run.recording)["quality"])


def count_calls(table, tool, quick):
    """Every kind, at the default rate and at ten times that."""
    calls, seconds = (500, 2) if quick else (CALLS, 120)
    for rate in (100,) if quick else (100, 1000):
        for kind in KINDS:
            bare = calls_once(None, kind, calls // 10, seconds, rate)
            made, eintr, short, quality = calls_once(tool, kind, calls, seconds, rate)
            seen = f" of {made} ({quality['calls_left_running']} captures without a stop); bare {bare[1] + bare[2]}"
            bar = f"{kind} at {rate} Hz: EINTR and short"
            if rate == 100:
                table.at_most(bar, eintr + short, 0, "{:.0f}", seen)
            else:
                table.stated(bar, f"{eintr + short}{seen}")


def spawns_once(folder, how, count, rate, options):
    """How many setuid programs began without their privileges; None where they have none here."""
    program, spawner, torchspy = (os.path.join(folder, name) for name in ("program", "spawner", "torchspy"))
    for path in (program, spawner):
        shutil.copy(built("setuid_spawner.c"), path)
    shutil.copy(profilers.torchspy_path(), torchspy)
    os.chmod(folder, 0o777)
    os.chmod(program, 0o4755)
    if subprocess.run([*NOBODY, program, "check"], stderr=subprocess.DEVNULL).returncode != 0:
        return None
    recording = os.path.join(folder, f"{how}-{rate}-{len(options)}.tspy")
    with Target([*NOBODY, spawner, program, str(count), how, str(SPAWNS[how])], 600) as target:
        command = [*NOBODY, torchspy, "record", "--pid", str(target.pid), "--rate", str(rate), "--max-stopped", "off", *options]
        with profilers.Run([*command, "-o", recording], folder) as run:
            time.sleep(1)
            target.go()
            lost = int(target.read_line().split()[1])
            run.wait(60)
    return lost


def count_privileges(table, quick):
    """setuid programs that were spawned by fork and by posix_spawn, under a torchspy without rights of its own."""
    count = 200 if quick else 3000
    with tempfile.TemporaryDirectory(prefix="torchspy-setuid-") as folder:
        for rate in (1000,) if quick else (100, 1000):
            for how in SPAWNS:
                for options in ((), ("--children", "all")):
                    bar = f"setuid programs without privileges, {how} {' '.join(options)} at {rate} Hz"
                    lost = spawns_once(folder, how, count, rate, options)
                    if lost is None:
                        table.skip(bar, "no setuid programs here: not root, or mounted nosuid")
                    else:
                        table.at_most(bar, lost, 0, "{:.0f}", f" of {count}")


def measure(table, folder, quick):
    """Calls and privileges."""
    table.heading("Calls cut short, privileges lost")
    missing = profilers.torchspy_missing()
    if missing:
        table.skip("calls cut short", missing)
        return
    count_calls(table, profilers.TorchSpy(folder), quick)
    count_privileges(table, quick)
