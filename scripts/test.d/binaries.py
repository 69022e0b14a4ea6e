#!/usr/bin/env python3
"""Builds all tests and runs their binaries, each within a limit of time; on larger machines several at a time.

usage: scripts/test.d/binaries.py [--jobs N] [--limit SECONDS] [NAME ...]

`cargo test` runs one binary after another, and waits for ever for one that hangs. Here a binary that hangs is ended, with
what it had printed and the processes that it had, and the others go on. Each starts in a session of its own with default
signals and no input, so that nothing of the caller's terminal or of a job scheduler reaches the programs that tests start.
NAME picks binaries (`native`, `lib`). The last line counts what passed, failed and was ignored, and the skips that were printed.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# These compare what torchspy read with clocks of the target, count what polls may miss, or fill the
# machine: another binary beside them would be measured, too, or they would starve it.
ALONE = re.compile(r"^(cuda|gpu|loaded|torch_polled|waits_live)$")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
# What libtest prints of a test that takes long, at its end, and of those that failed behind them
# all.
LONG = re.compile(r"^test (\S+) has been running for over", re.MULTILINE)
ENDED = re.compile(r"^test (\S+) \.\.\. ", re.MULTILINE)
FAILED = re.compile(r"^    (\S+)$", re.MULTILINE)
# Seconds of each binary in the last run: the longest begin first, so that none of them runs alone
# at the end.
SECONDS = os.path.join(ROOT, "target", "test-seconds.json")
printing = threading.Lock()


def say(line):
    with printing:
        print(line, flush=True)


def build():
    """The test binaries, by name."""
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            target = message["target"]
            name = "lib" if "lib" in target["kind"] else "main" if "bin" in target["kind"] else target["name"]
            found[name] = message["executable"]
    return found


def last_seconds():
    """Seconds that each binary took when it ran last; none before the first run."""
    try:
        with open(SECONDS, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def left_over(mark):
    """What is still there of the programs that a binary started, whatever session they are in: (pid, state, command line)."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark.encode() not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                line = file.read().replace("\0", " ").strip()[:200]
        except (OSError, IndexError):
            continue  # It ended, or is another user's.
        if state != "Z":
            found.append((int(name), state, line))
    return found


def threads(pid):
    """The threads of a binary, each named by its test, with what it waits in; as lines."""
    lines = ""
    for tid in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        found = []
        for name in ("comm", "wchan", "syscall"):
            try:
                with open(f"/proc/{pid}/task/{tid}/{name}", encoding="utf-8", errors="replace") as file:
                    found.append(file.read().strip())
            except OSError as error:
                found.append(f"({error.strerror})")
        lines += f"  thread {tid} {' '.join(found)}\n"
    return lines


def not_passed(text):
    """The tests that libtest says to have failed, or that it says to take long and never to end."""
    failed = FAILED.findall(text.rpartition("\nfailures:\n")[2]) if "\nfailures:\n" in text else []
    ended = set(ENDED.findall(text))
    return failed + [name for name in LONG.findall(text) if name not in ended]


def defaults():
    """Signals as a program at a terminal has them: what is ignored stays ignored over an exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # The C library keeps some for itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def run(name, path, limit):
    """Runs one binary; its output, and whether it passed."""
    started = time.monotonic()
    mark = f"TORCHSPY_TEST={os.getpid()}-{name}"
    environment = {**os.environ, "CARGO_MANIFEST_DIR": ROOT, **dict([mark.split("=")])}
    # A file, and no pipe: what is left running would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [path, "--nocapture"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=defaults,
            start_new_session=True, env=environment,
        )  # fmt: skip
        hung = ""
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            hung = f"\n{name}: still running after {limit} s; its processes:\n"
            for pid, state, line in left_over(mark):
                hung += f"  {pid} {state} {line}\n"
            hung += threads(process.pid)
            process.kill()
            process.wait()
        leaked = left_over(mark)
        for pid, _, _ in leaked:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        output.seek(0)
        text = output.read().decode(errors="replace") + hung
    if leaked and not hung:
        # Workers of a program that was killed take a while to notice.
        text += f"\n{name}: these were still running, and were ended: {leaked}\n"
    spent = time.monotonic() - started
    verdict = "hung" if hung else "passed" if process.returncode == 0 else "FAILED"
    with printing:
        print(f"\n---- {name}\n{text.rstrip()}\n---- {name}: {verdict}, {spent:.1f} s", flush=True)
    return {"name": name, "text": text, "passed": verdict == "passed", "seconds": spent, "verdict": verdict}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # A binary runs as many tests at a time as there are CPUs, and most have a program that
    # computes.
    jobs = max(1, (os.cpu_count() or 1) // 4)
    parser.add_argument("--jobs", type=int, default=jobs, help=f"binaries at a time (default: one for each four CPUs, here {jobs})")
    parser.add_argument("--limit", type=float, default=1500, help="seconds that one binary may take (default 1500)")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    binaries = build()
    unknown = set(arguments.names) - set(binaries)
    if unknown:
        sys.exit(f"error: no test binary {', '.join(sorted(unknown))}\nhint: there are {', '.join(sorted(binaries))}")
    seconds = last_seconds()
    # What is new may take long: it begins first.
    chosen = sorted(arguments.names or binaries, key=lambda name: -seconds.get(name, float("inf")))
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = [pool.submit(run, name, binaries[name], arguments.limit) for name in chosen if not ALONE.search(name)]
        results = [task.result() for task in tasks]
    results += [run(name, binaries[name], arguments.limit) for name in chosen if ALONE.search(name)]
    seconds.update({one["name"]: round(one["seconds"], 1) for one in results})
    with open(SECONDS, "w", encoding="utf-8") as file:
        json.dump(seconds, file, indent=1, sort_keys=True)
    print("\nthe slowest:")
    for one in sorted(results, key=lambda one: -one["seconds"])[:12]:
        print(f"  {one['seconds']:6.1f} s  {one['name']}")
    counts = [sum(int(part[index]) for one in results for part in RESULT.findall(one["text"])) for index in range(3)]
    skips = sum(len(re.findall(r"(?im)^skipp", one["text"])) for one in results)
    failed = [" ".join([f"{one['name']} ({one['verdict']})", *not_passed(one["text"])]) for one in results if not one["passed"]]
    print(
        f"{len(results)} binaries in {time.monotonic() - started:.0f} s: {counts[0]} tests passed, {counts[1]} failed,"
        f" {counts[2]} ignored, {skips} skips printed"
    )
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)}")


if __name__ == "__main__":
    main()
