"""Holds threads in code of subinterpreters, in many ways at the same time.

Each case says which frames Python sees, leaf first, as far as its own interpreter goes, and those of whoever runs that interpreter
below them, then blocks in a lock. Prints a line of JSON for each (case, pid, tid, frames as name, file, line) and "ready", and stays
until it is killed. With the argument "main" the main thread itself is held, in an interpreter within another; with "spin" the main
thread and two others spin, each in an interpreter with a lock of its own where Python has that.
"""

import _thread
import functools
import json
import os
import sys
import tempfile
import threading

RECEIVER, SENDER = os.pipe()
FOLDER = tempfile.mkdtemp(prefix="stack_interpreters")
HELD = '''
import _thread, json, os, sys

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

GATE = _thread.allocate_lock()
GATE.acquire()
# An interpreter ends with the last reference to its id.
KEPT = []
RUNNER = _thread.get_native_id()


def frames_of(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    if _thread.get_native_id() != RUNNER:
        return frames
    # Those of whoever runs this interpreter.
    return frames + json.loads(getattr(sys.modules["__main__"], "outer", "[]"))


def say(case, frames):
    held = {"case": case, "pid": os.getpid(), "tid": _thread.get_native_id(), "frames": frames}
    os.write(PIPE, json.dumps(held).encode() + b"\\n")


# What is said and what follows it stand on one line.
def hold(case):
    say(case, frames_of(sys._getframe())); GATE.acquire()


def spin(case):
    say(case, frames_of(sys._getframe()))
    while True: pass


def create(shares_lock=False):
    if not shares_lock:
        return interpreters.create()
    if sys.version_info >= (3, 13):
        return interpreters.create("legacy")
    return interpreters.create(isolated=False)


START = "import sys; sys.path.insert(0, FOLDER); outer = %r; import held; from held import hold; "


def run(body, interpreter=None, shares_lock=False):
    interpreter = create(shares_lock) if interpreter is None else interpreter
    KEPT.append(interpreter)
    interpreters.run_string(interpreter, START % json.dumps(frames_of(sys._getframe())) + body)
'''
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def plain():
    held.run("hold('plain')")


@case
def shares_the_lock():
    held.run("hold('shares_the_lock')", shares_lock=True)


@case
def deep_on_both_sides(depth=40):
    if depth:
        return deep_on_both_sides(depth - 1)
    held.run("""
def deeper(left):
    return deeper(left - 1) if left else hold('deep_on_both_sides')
deeper(40)
""")


@case
def in_callbacks_of_c():
    body = """
import functools
def key(item):
    functools.reduce(lambda a, b: hold('in_callbacks_of_c'), [1, 2])
sorted([1], key=key)
"""
    sorted([1], key=lambda item: functools.reduce(lambda a, b: held.run(body), [1, 2]))


@case
def generators():
    def outer():
        yield held.run("""
def inner():
    yield hold('generators')
def delegates():
    yield from inner()
list(delegates())
""")

    list(outer())


@case
def class_body():
    class Outer:
        held.run("""
class Inner:
    class Within:
        hold('class_body')
""")


@case
def event_loop():
    held.run("""
import asyncio
async def leaf():
    hold('event_loop')
async def main():
    await asyncio.gather(leaf())
asyncio.run(main())
""")


@case
def except_handler():
    try:
        raise ValueError
    except ValueError:
        held.run("""
try:
    raise KeyError
except KeyError:
    hold('except_handler')
""")


@case
def two_deep():
    held.run("""
def again():
    held.run("hold('two_deep')")
again()
""")


@case
def four_deep():
    body = "hold('four_deep')"
    for level in range(3):
        body = f"\ndef level{level}(body):\n    held.run(body)\nlevel{level}({body!r})\n"
    held.run(body)


@case
def second_run():
    interpreter = held.create()
    held.run("kept = 1", interpreter)
    held.run("kept += 1; hold('second_run')", interpreter)


@case
def after_another_that_rests():
    held.run("kept = 1", held.create())
    held.run("hold('after_another_that_rests')", held.create())


@case
def after_one_that_ended():
    interpreter = held.create()
    held.run("kept = 1", interpreter)
    held.interpreters.destroy(interpreter)
    held.hold("after_one_that_ended")


@case
def after_one_that_rests():
    held.run("kept = 1")
    held.hold("after_one_that_rests")


@case
def after_a_failure_inside():
    try:
        held.run("raise ValueError")
    except Exception:
        pass
    held.hold("after_a_failure_inside")


@case
def thread_of_another():
    held.run("import _thread; _thread.start_new_thread(hold, ('thread_of_another',))", shares_lock=True)


@case
def thread_beside_its_starter():
    held.run("""
import _thread
_thread.start_new_thread(hold, ('thread_beside_its_starter 2',))
hold('thread_beside_its_starter')
""", shares_lock=True)


def recent():
    """Cases by concurrent.interpreters, of 3.14 on."""
    import concurrent.futures
    import concurrent.interpreters as interpreters

    real = interpreters._interpreters

    class Noting:
        """Gives an interpreter the frames of whoever runs it."""

        def __getattr__(self, name):
            return getattr(real, name)

        def exec(self, id, *args, **keywords):
            real.set___main___attrs(id, {"outer": json.dumps(held.frames_of(sys._getframe()))}); return real.exec(id, *args, **keywords)

        def call(self, id, *args, **keywords):
            real.set___main___attrs(id, {"outer": json.dumps(held.frames_of(sys._getframe()))}); return real.call(id, *args, **keywords)

    interpreters._interpreters = Noting()

    def create():
        interpreter = interpreters.create()
        interpreter.exec(f"import sys; sys.path.insert(0, {FOLDER!r})")
        return interpreter

    @case
    def interpreter_exec():
        create().exec("import held\nheld.hold('interpreter_exec')")

    @case
    def interpreter_call():
        create().call(held.hold, "interpreter_call")

    @case
    def call_in_thread():
        create().call_in_thread(held.hold, "call_in_thread")

    @case
    def pool():
        pools.append(concurrent.futures.InterpreterPoolExecutor(1, initializer=exec, initargs=(f"import sys; sys.path.insert(0, {FOLDER!r})",)))
        pools[0].submit(held.hold, "pool")


pools = []


def nested_in_main():
    held.run("""
def again():
    held.run("hold('nested_in_main')")
again()
""")


def spinning():
    for name in ("spins 1", "spins 2"):
        threading.Thread(target=held.run, args=(f"held.spin({name!r})",), daemon=True).start()
    held.spin("spins in main")


def held_threads():
    with os.fdopen(RECEIVER) as lines:
        yield from lines


def main():
    what = sys.argv[1:]
    if what:
        count = {"main": 1, "spin": 3}[what[0]]
        threading.Thread(target=report, args=(count,), daemon=True).start()
        {"main": nested_in_main, "spin": spinning}[what[0]]()
    if sys.version_info >= (3, 14):
        recent()
    lines = held_threads()
    for name, function in CASES.items():
        threading.Thread(target=function, name=name, daemon=True).start()
        # One after the other: what they say must not mix.
        for _ in range(2 if name == "thread_beside_its_starter" else 1):
            print(next(lines), end="")
    print("ready", flush=True)
    threading.Event().wait()


def report(count):
    lines = held_threads()
    for _ in range(count):
        print(next(lines), end="")
    print("ready", flush=True)


with open(f"{FOLDER}/held.py", "w") as file:
    file.write(HELD.replace("PIPE", str(SENDER)).replace("FOLDER", repr(FOLDER)))
sys.path.insert(0, FOLDER)
import held  # noqa: E402

main()
