"""An hour of `top`: its memory stays flat. Too long for `all`, so it runs only where it is named."""

import threading
import time

import profilers
from figures import median
from own import cpu_seconds, memory_mb
from targets import Failed, Target, torch_python
from top import Top


def keep_busy(target, over):
    """A trainer that works for about half of the time: ten steps, and a pause."""
    while not over.wait(0.5):
        target.go()


def measure(table, _folder, quick):
    """Issue 5, bar 3: the last of it."""
    table.heading("an hour of top, on a torch script with about 160 threads and 20 short-lived ones a second")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("an hour of top", missing)
        return
    minute, minutes = (2, 5) if quick else (60, 62)
    with Target.python("many_threads.py", "--steps", 10, "--omp", 1, "--churn", 20, python=python) as target:
        started, over = time.monotonic(), threading.Event()
        # What it prints has to be read, or it would wait for a full pipe.
        threading.Thread(target=lambda: list(map(len, target.process.stdout)), daemon=True).start()
        busy = threading.Thread(target=keep_busy, args=(target, over), daemon=True)
        busy.start()
        with Top(target.pid) as top:
            top.drawn_after(b"(many_threads.py:")
            found = []
            for number in range(1, minutes):
                time.sleep(max(0, started + number * minute - time.monotonic()))
                private, anonymous, rss = memory_mb(top.process.pid)
                found.append(anonymous)
                print(f"    minute {number}: {anonymous:.1f} MB of its own, {private:.1f} with files that it alone reads, RSS {rss:.1f}", flush=True)
                top.forget()
            if top.process.poll() is not None:
                raise Failed(f"top ended with {top.process.returncode}")
            share = 100 * cpu_seconds(top.process.pid) / (time.monotonic() - started)
            top.finish()
        over.set()
        busy.join()
    # By then the minute that `f` draws is full, and every library's symbols are read.
    tenth = len(found) // 6 or 1
    early, late = median(found[tenth // 2 : tenth + tenth // 2]), median(found[-tenth:])
    table.stated("own memory, about minute 10 and at the end", f"{early:.1f} MB, {late:.1f} MB")
    table.at_most("    growth over the hour", 100 * (late / early - 1), 5, "{:.1f} %")
    table.stated("    own CPU over all of it", f"{share:.1f} % of a core")
