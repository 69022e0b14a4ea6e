"""Tasks of asyncio that wait in many ways; prints what each of them is at, as JSON, and then "ready".

usage: asyncio_tasks.py waiting | busy | many COUNT
With waiting a second thread has an event loop, too, and the loops sleep from then on. With busy one task computes, and others are ready
or have not started. With many COUNT tasks wait in a queue.
"""

import asyncio
import collections.abc
import gc
import json
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

FOREVER = 100_000


def awaited(awaitable):
    """What a suspended coroutine or generator awaits, and its frame."""
    for prefix, inner in [("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")]:
        if hasattr(awaitable, f"{prefix}_frame"):
            return getattr(awaitable, f"{prefix}_frame"), getattr(awaitable, f"{prefix}_{inner}")
    return None, None


def chain(task):
    """Function and line of a task's coroutine and of all that it awaits, innermost first."""
    frames, awaitable = [], task.get_coro()
    while awaitable is not None:
        frame, inner = awaited(awaitable)
        if frame is not None:
            code = frame.f_code
            frames.insert(0, [getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        elif type(awaitable).__name__ in ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"):
            inner = gc.get_referents(awaitable)[0]
        awaitable = inner
    return frames


def described(loop):
    return [{"name": task.get_name(), "thread": threading.get_native_id(), "frames": chain(task)} for task in asyncio.all_tasks(loop)]


class Awaitable:
    def __init__(self, future):
        self.future = future

    def __await__(self):
        return (yield from self.future.__await__())


class Wrapped:
    """Its __await__ is that of a coroutine."""

    def __await__(self):
        return deep(2).__await__()


class ByWrapper:
    """Its generator waits for the wrapper of a coroutine."""

    def __await__(self):
        return (yield from deep(2).__await__())


class ByGenerator:
    def __await__(self):
        return (yield from Awaitable(asyncio.get_running_loop().create_future()).__await__())


class ByLoop:
    """Its generator iterates over another, and waits for none."""

    def __await__(self):
        for step in Awaitable(asyncio.get_running_loop().create_future()).__await__():
            yield step


class Foreign(collections.abc.Coroutine):
    """A coroutine that is no coroutine object, as those of Cython."""

    def __init__(self, inner):
        self.inner = inner

    def send(self, value):
        return self.inner.send(value)

    def throw(self, *error):
        return self.inner.throw(*error)

    def close(self):
        self.inner.close()

    def __await__(self):
        return self


class Entered:
    async def __aenter__(self):
        await asyncio.Event().wait()

    async def __aexit__(self, *_):
        pass


class Left(Entered):
    async def __aenter__(self):
        pass

    async def __aexit__(self, *_):
        await asyncio.Event().wait()


async def deep(levels):
    if levels:
        return await deep(levels - 1)
    await asyncio.sleep(FOREVER)


@types.coroutine
def old_style():
    yield from asyncio.get_running_loop().create_future().__await__()


@types.coroutine
def old_style_of_a_coroutine():
    yield from deep(1)


async def numbers():
    yield 1
    await asyncio.sleep(FOREVER)
    yield 2


async def iterates():
    async for _ in numbers():
        pass


async def next_of():
    generator = numbers()
    await generator.__anext__()
    await anext(generator, None)


async def comprehends():
    return [each async for each in numbers()]


async def bare(future):
    await future


async def enters(manager):
    async with manager:
        pass


async def queued(queue):
    while True:
        await queue.get()


async def locked(lock):
    async with lock:
        pass


async def gathers(children):
    await asyncio.gather(*children)


async def of_another(task):
    await task


async def shields(task):
    await asyncio.shield(task)


async def limited():
    await asyncio.wait_for(asyncio.Event().wait(), FOREVER)


async def several(tasks):
    await asyncio.wait(tasks)


async def in_a_thread(pool, gate):
    await asyncio.get_running_loop().run_in_executor(pool, gate.wait)


async def grouped():
    async with asyncio.TaskGroup() as group:
        group.create_task(deep(0), name="grouped child")


async def many_locals(*numbers_of_it):
    first, second = numbers_of_it[:2]
    kept = [first, second]
    for _ in kept:
        await asyncio.sleep(FOREVER, result=(first, [second, kept]))


async def ended():
    return (number for number in range(7))


def waiting_tasks(pool, gate):
    """Coroutines by the names of their tasks."""
    loop = asyncio.get_running_loop()
    lock, queue = asyncio.Lock(), asyncio.Queue()
    lock._locked = True
    named = {
        "foreign": Foreign(deep(1)),
        "by wrapper": bare(ByWrapper()),
        "by generator": bare(ByGenerator()),
        "by loop": bare(ByLoop()),
        "deep": deep(30),
        "old style": bare(old_style()),
        "old style of a coroutine": bare(old_style_of_a_coroutine()),
        "iterates": iterates(),
        "next of": next_of(),
        "comprehends": comprehends(),
        "bare": bare(loop.create_future()),
        "awaitable": bare(Awaitable(loop.create_future())),
        "wrapped": bare(Wrapped()),
        "enters": enters(Entered()),
        "leaves": enters(Left()),
        "locked": locked(lock),
        "limited": limited(),
        "many locals": many_locals(1, 2, 3),
        "in a thread": in_a_thread(pool, gate),
        **{f"worker-{number}": queued(queue) for number in range(5)},
    }
    if hasattr(asyncio, "TaskGroup"):
        named["grouped"] = grouped()
    return named


async def wait(tell):
    """Starts the tasks, and has them described once all of them wait."""
    gate = threading.Event()
    kept = [asyncio.create_task(ended())]
    await kept[0]
    with ThreadPoolExecutor() as pool:
        tasks = {name: asyncio.create_task(coroutine, name=name) for name, coroutine in waiting_tasks(pool, gate).items()}
        children = [asyncio.create_task(deep(1), name=f"child-{number}") for number in range(3)]
        more = {
            "gathers": gathers(children),
            "of another": of_another(tasks["deep"]),
            "shields": shields(tasks["bare"]),
            "several": several(children),
        }
        kept += [asyncio.create_task(coroutine, name=name) for name, coroutine in more.items()]
        kept.append(asyncio.create_task(deep(1)))
        for _ in range(100):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, lambda: tell(described(loop)))
        await asyncio.Event().wait()


def waits():
    told, both = [], threading.Barrier(2)

    def tell(tasks):
        told.extend(tasks)
        if both.wait() == 0:
            print(json.dumps(told))
            print("ready", flush=True)

    threading.Thread(target=lambda: asyncio.run(wait(tell)), name="loop", daemon=True).start()
    asyncio.run(wait(tell))


async def yields():
    while True:
        await asyncio.sleep(0)


async def busy():
    future = asyncio.get_running_loop().create_future()
    woken = asyncio.create_task(bare(future), name="woken")
    others = [asyncio.create_task(yields(), name=f"ready-{number}") for number in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    others.append(asyncio.create_task(deep(0), name="new"))
    future.set_result(woken)
    print("ready", flush=True)
    while True:
        pass


async def many(count):
    queue = asyncio.Queue()
    kept = [asyncio.create_task(queued(queue), name=f"worker-{number}") for number in range(count)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, lambda: print("ready", flush=True))
    await asyncio.gather(*kept)


if sys.argv[1] == "waiting":
    waits()
elif sys.argv[1] == "busy":
    asyncio.run(busy())
else:
    asyncio.run(many(int(sys.argv[2])))
