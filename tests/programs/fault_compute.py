"""Computes a number that is known beforehand, on several threads, while its profiler is being killed.

Prints "ready PID", computes --rounds rounds (or, with --until-stdin, until a line comes on stdin), then prints
"result HEX rounds N threads T" where HEX must equal what `--expect N T` prints in a run of its own.
"""

import argparse
import hashlib
import os
import select
import sys
import threading


def one_round(state, number):
    value = number
    for step in range(200):
        value = (value * 6364136223846793005 + 1442695040888963407 + step) % (1 << 64)
    return hashlib.sha256(state + value.to_bytes(8, "little")).digest()


class Work(threading.Thread):
    """A chain of hashes: one wrong register anywhere, and all that follows is wrong."""

    def __init__(self, seed):
        super().__init__(name=f"work-{seed}")
        self.seed, self.state, self.done, self.wanted = seed, bytes([seed]), 0, None

    def run(self):
        while self.wanted is None or self.done < self.wanted:
            self.state = one_round(self.state, self.done)
            self.done += 1


def digest(states):
    return hashlib.sha256(b"".join(states)).hexdigest()[:16]


def expected(rounds, threads):
    states = []
    for seed in range(threads):
        state = bytes([seed])
        for number in range(rounds):
            state = one_round(state, number)
        states.append(state)
    return digest(states)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20000)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--until-stdin", action="store_true")
    parser.add_argument("--expect", nargs=2, type=int, metavar=("ROUNDS", "THREADS"))
    arguments = parser.parse_args()
    if arguments.expect:
        print(expected(*arguments.expect))
        return
    workers = [Work(seed) for seed in range(arguments.threads)]
    if not arguments.until_stdin:
        for worker in workers:
            worker.wanted = arguments.rounds
    for worker in workers:
        worker.start()
    print("ready", os.getpid(), flush=True)
    if arguments.until_stdin:
        select.select([sys.stdin], [], [])
        # A round that all can still reach, so that their results do not depend on when they were told.
        rounds = max(worker.done for worker in workers) + 1000
        for worker in workers:
            worker.wanted = rounds
    for worker in workers:
        worker.join()
    rounds = workers[0].done
    assert all(worker.done == rounds for worker in workers)
    print("result", digest([worker.state for worker in workers]), "rounds", rounds, "threads", arguments.threads, flush=True)


if __name__ == "__main__":
    main()
