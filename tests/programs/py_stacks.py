"""Several threads sleep at known places. Prints, as one line of JSON, each thread's stack as Python itself sees it,
root last, and then "ready"."""
import asyncio
import functools
import json
import sys
import threading
import time

STACKS = {}
GATE = threading.Semaphore(0)


def note(kind):
    """Writes down the caller's stack. It is called on the very line on which the caller then sleeps."""
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append([name, code.co_filename, frame.f_lineno, frame.f_lasti])
        frame = frame.f_back
    STACKS[kind] = {"ident": threading.get_ident(), "native": threading.get_native_id(), "frames": frames}
    GATE.release()
    return False


def sleeping(kind):
    note(kind) or time.sleep(3600)


def from_sorted(kind):
    def key(value):
        return sleeping(kind)

    return sorted([1, 2], key=key)


def from_reduce(kind):
    return functools.reduce(lambda left, right: from_sorted(right), [1, kind])


def from_map(kind):
    return list(map(from_reduce, [kind]))


def deep(kind, depth):
    if depth == 0:
        return from_map(kind)
    return deep(kind, depth - 1)


def inner_generator(kind):
    yield 1
    deep(kind, 3)
    yield 2


def outer_generator(kind):
    yield from inner_generator(kind)


def generator(kind):
    for _ in outer_generator(kind):
        pass


async def inner_coroutine(kind):
    await asyncio.sleep(0)
    sleeping(kind)


async def outer_coroutine(kind):
    async with asyncio.Lock():
        await inner_coroutine(kind)


def coroutine(kind):
    asyncio.run(outer_coroutine(kind))


def class_body(kind):
    class Body:
        attribute = [sleeping(kind) for _ in range(1)]

    return Body


class Constructed:
    """Made often enough first that the interpreter specialises the call of __init__."""

    def __init__(self, kind):
        if kind is not None:
            sleeping(kind)


def constructor(kind):
    for turn in range(200):
        Constructed(None if turn < 199 else kind)


class Operators:
    def __init__(self, kind):
        self.kind = kind

    def __getattr__(self, name):
        return sleeping(self.kind)

    def __add__(self, other):
        return (
            self.
            missing
        )


def operator(kind):
    return (
        Operators(kind)
        + 1
    )


def handler(kind):
    try:
        raise ValueError(kind)
    except ValueError:
        with_finally(kind)


def with_finally(kind):
    try:
        pass
    finally:
        sleeping(
            kind
        )


def generated(kind):
    lines = "\n" * 300 + "def made(kind, sleeping):\n" + "    kind = kind\n" * 700 + "    sleeping(kind)\n"
    namespace = {}
    exec(compile(lines, "<made of ünïcödé Ж>", "exec"), namespace)
    namespace["made"](kind, sleeping)


KINDS = [generator, coroutine, class_body, constructor, operator, handler, generated]


def main():
    for function in KINDS:
        threading.Thread(target=function, args=(function.__name__,), daemon=True).start()
        GATE.acquire()
    deep_and_report("main", 40)


def deep_and_report(kind, depth):
    if depth:
        return deep_and_report(kind, depth - 1)
    return [report(value) for value in map(lambda value: value, [kind])]


def report(kind):
    note(kind) or print(json.dumps(STACKS), flush=True) or print("ready", flush=True) or time.sleep(3600)


main()
