"""Holds threads on both sides of forks, in many ways at the same time.

Each side says which frames Python sees, leaf first, then blocks in a lock. Prints a line of JSON for each (case, pid, tid, frames as
name, file, line) and "ready", and stays until it is killed; its children end with it. With the argument "spin" it forks again and
again, from deep within a recursion, and both sides compute, each in functions of its own.
"""

import asyncio
import concurrent.futures
import ctypes
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import warnings

SAID = "STACK_FORKS_SAID"
GATE = threading.Lock()
GATE.acquire()
CASES = {}
# What processes that end with their parent keep: executors, pools, processes.
KEPT = []
PR_SET_PDEATHSIG, SIGKILL = 1, 9
end_with_parent = functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def frames_of(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames


def say(case, frames):
    held = {"case": case, "pid": os.getpid(), "tid": threading.get_native_id(), "frames": frames}
    # One write to the end of a file is whole, however long.
    with open(os.environ[SAID], "ab", buffering=0) as file:
        file.write(json.dumps(held).encode() + b"\n")


# What is said and what follows it stand on one line.
def hold(case):
    say(case, frames_of(sys._getframe())); GATE.acquire()


def work(case):
    end_with_parent()
    hold(case)


def case(count=2):
    """A case of which so many processes or threads say something."""

    def take(function):
        CASES[function.__name__] = (function, count)
        return function

    return take


@case()
def from_a_thread():
    if os.fork() == 0:
        hold("from_a_thread: child")
    hold("from_a_thread: parent")


@case()
def deep_down():
    def down(left):
        pid = down(left - 1) if left else os.fork()
        if left == 0 and pid:
            hold("deep_down: parent")
        # The child returns from half of what both had called, and calls others.
        if left == 200 and pid == 0:
            elsewhere(100)
        return pid

    def elsewhere(left):
        elsewhere(left - 1) if left else hold("deep_down: child")

    down(400)


@case()
def within_a_generator():
    def generator():
        pid = yield os.fork()
        if pid:
            hold("within_a_generator: parent")
        yield

    held = generator()
    pid = next(held)
    if pid == 0:
        hold("within_a_generator: child")
    held.send(pid)


@case()
def within_a_callback():
    def key(item):
        pid = os.fork()
        hold("within_a_callback: " + ("parent" if pid else "child"))

    functools.reduce(lambda a, b: sorted([a, b], key=key), [1, 2])


@case()
def within_an_event_loop():
    async def leaf():
        if os.fork() == 0:
            hold("within_an_event_loop: child")
        hold("within_an_event_loop: parent")

    async def main():
        await asyncio.gather(leaf())

    asyncio.run(main())


@case()
def child_leaves_the_handler():
    try:
        try:
            raise ValueError
        except ValueError:
            if os.fork():
                hold("child_leaves_the_handler: parent")
            raise
    except ValueError:
        hold("child_leaves_the_handler: child")


@case(3)
def grandchild():
    def child():
        if os.fork() == 0:
            hold("grandchild: grandchild")
        hold("grandchild: child")

    if os.fork() == 0:
        child()
    hold("grandchild: parent")


@case(4)
def child_starts_threads():
    if os.fork() == 0:
        for name in ("first", "second"):
            threading.Thread(target=hold, args=(f"child_starts_threads: {name}",), daemon=True).start()
        hold("child_starts_threads: child")
    hold("child_starts_threads: parent")


@case(3)
def thread_of_a_child_forks():
    def forks():
        if os.fork() == 0:
            hold("thread_of_a_child_forks: grandchild")
        hold("thread_of_a_child_forks: child")

    if os.fork() == 0:
        threading.Thread(target=forks, daemon=True).start()
        # A lock of its own: this thread says nothing.
        threading.Event().wait()
    hold("thread_of_a_child_forks: parent")


IN_HOOK = threading.local()


def hook():
    end_with_parent()
    if getattr(IN_HOOK, "is_wanted", False):
        hold("in_the_hook: child")


@case()
def in_the_hook():
    IN_HOOK.is_wanted = True
    os.fork()
    hold("in_the_hook: parent")


@case(1)
def process_by_fork():
    by("fork", "process_by_fork")


@case(1)
def process_by_spawn():
    by("spawn", "process_by_spawn")


@case(1)
def process_by_forkserver():
    by("forkserver", "process_by_forkserver")


def by(method, case):
    process = multiprocessing.get_context(method).Process(target=work, args=(case,), daemon=True)
    KEPT.append(process)
    process.start()


@case(2)
def pool_by_fork():
    pool = multiprocessing.get_context("fork").Pool(2)
    KEPT.append(pool)
    for number in range(2):
        pool.apply_async(work, (f"pool_by_fork {number}",))


@case(1)
def executor_by_spawn():
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    KEPT.append(pool)
    pool.submit(work, "executor_by_spawn")


def stay(function):
    """Children end with the thread that forked them."""
    function()
    threading.Event().wait()


def by_main_thread():
    if os.fork() == 0:
        hold("by_main_thread: child")
    hold("by_main_thread: parent")


def wait_for(count):
    """The lines that were said, once they are as many."""
    lines = []
    while len(lines) < count:
        threading.Event().wait(0.001)
        with open(os.environ[SAID]) as file:
            lines = file.read().split("\n")[:-1]
    return lines


def report(count):
    for line in wait_for(count):
        print(line)
    print("ready", flush=True)


def before_fork(left, seconds):
    return before_fork(left - 1, seconds) if left else forks(seconds)


def forks(seconds):
    if os.fork() == 0:
        child_alone(seconds)
        os._exit(0)
    parent_alone(seconds)
    os.wait()


def child_alone(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def parent_alone(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main():
    warnings.simplefilter("ignore")
    os.register_at_fork(after_in_child=hook)
    if sys.argv[1:] == ["spin"]:
        for depth in (0, 100, 400):
            before_fork(depth, 0.4)
        return
    os.environ[SAID] = tempfile.mkstemp(prefix="stack_forks")[1]
    total = 0
    for name, (function, count) in CASES.items():
        total += count
        threading.Thread(target=stay, args=(function,), name=name, daemon=True).start()
        wait_for(total)
    threading.Thread(target=report, args=(total + 2,), daemon=True).start()
    by_main_thread()


if __name__ == "__main__":
    main()
