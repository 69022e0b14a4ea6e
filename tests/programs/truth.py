"""Knows its own profile: logs every switch between its functions with the monotonic clock.

Prints "ready PID", works for --seconds at once (or, with --wait, after a line on stdin), then writes a line of JSON to
--log (or stdout): {"functions": {name: seconds}, "switches": n, "window_ns": [first, last], "steps": n}. The functions
named there call nothing but each other's work in C, so their total time in a profile is their time in the log.

What it does, in turns: Python and native work of random length; waits near a tick of 100 Hz in length (7 to 13 ms)
between short bursts; steps of exactly 10 ms, started on the clock, always in the same order: a sampler with a fixed
period sees only one of their parts. At 1,000 Hz the same is true of its 1 ms steps.
"""

import argparse
import ctypes
import json
import os
import random
import sys
import threading
import time

import compiled

NATIVE = compiled.load("truth.c")
now = time.monotonic_ns
MS = 1_000_000



def burn_python(until):
    while now() < until:
        pass


def burn_python_more(until):
    total = 0
    while now() < until:
        total += 1
    return total


def native_one(until):
    NATIVE.truth_spin_one(ctypes.c_uint64(until))


def native_two(until):
    NATIVE.truth_spin_two(ctypes.c_uint64(until))


def wait_near_a_tick(until):
    time.sleep(max(0, until - now()) / 1e9)


def step_first(until):
    while now() < until:
        pass


def step_second(until):
    NATIVE.truth_spin_one(ctypes.c_uint64(until))


def step_rest(until):
    time.sleep(max(0, until - now()) / 1e9)


class Log:
    """Time by function, from switches."""

    def __init__(self):
        self.totals = {}
        self.switches = 0

    def run(self, function, until):
        start = now()
        function(until)
        self.totals[function.__name__] = self.totals.get(function.__name__, 0) + now() - start
        self.switches += 1


def random_work(log, draw):
    for _ in range(12):
        function = draw.choice([burn_python, burn_python_more, native_one, native_two])
        log.run(function, now() + int(draw.uniform(0.5, 9) * MS))


def native_work(log, draw, end):
    while now() < end:
        log.run(draw.choice([native_one, native_one, native_two]), now() + int(draw.uniform(0.5, 9) * MS))


def work_in_threads(count, seed, end):
    logs = [Log() for _ in range(count)]
    work = [threading.Thread(target=native_work, args=(log, random.Random(seed + number), end)) for number, log in enumerate(logs)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    log = Log()
    for each in logs:
        log.switches += each.switches
        for name, spent in each.totals.items():
            log.totals[name] = log.totals.get(name, 0) + spent
    return log


def waits(log, draw):
    for _ in range(12):
        log.run(draw.choice([burn_python, native_two]), now() + int(draw.uniform(0.3, 3) * MS))
        log.run(wait_near_a_tick, now() + int(draw.uniform(7, 13) * MS))


def aliased_steps(log, period_ns, count):
    # The deadline is on the clock and does not drift: 35 %, 45 % and the rest of each period.
    start = (now() // period_ns + 1) * period_ns
    log.run(step_rest, start)
    for number in range(count):
        begin = start + number * period_ns
        log.run(step_first, begin + period_ns * 35 // 100)
        log.run(step_second, begin + period_ns * 80 // 100)
        log.run(step_rest, begin + period_ns)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="so many threads that do native work, and nothing else")
    parser.add_argument("--wait", action="store_true", help="start at a line on stdin")
    parser.add_argument("--log", help="write the result there and not to stdout")
    arguments = parser.parse_args()
    print("ready", os.getpid(), flush=True)
    if arguments.wait:
        sys.stdin.readline()
    draw, log, steps, begin = random.Random(arguments.seed), Log(), 0, now()
    end = begin + int(arguments.seconds * 1e9)
    if arguments.threads:
        log = work_in_threads(arguments.threads, arguments.seed, end)
    while now() < end:
        random_work(log, draw)
        waits(log, draw)
        aliased_steps(log, 10 * MS, 15)
        aliased_steps(log, 1 * MS, 50)
        steps += 1
    result = {
        "functions": {name: spent / 1e9 for name, spent in sorted(log.totals.items())},
        "switches": log.switches,
        "window_ns": [begin, now()],
        "steps": steps,
    }
    with open(arguments.log, "w", encoding="utf-8") if arguments.log else sys.stdout as output:
        print(json.dumps(result), file=output, flush=True)


if __name__ == "__main__":
    main()
