"""Threads that never rest, one for each way of calling: each is at any time in a place that its source names.

A comment `# > name` on a line says which functions that line calls. The stacks that a thread can have are therefore the paths
from its first function along these lines, each with any line at its leaf. Prints a line of JSON for each function (its name, file,
lines, and what it calls by line) and for each case (its first function, thread, the frames below, and how many frames of a
function there are at least and at most), then "ready", and spins until it is killed.
"""

import functools
import json
import re
import sys
import threading
import types
import zlib

CASES = []
DEPTH = 60


def case(function=None, **counts):
    """A thread's first function. `counts`: how many frames of a function there are, at least and at most."""
    if function is None:
        return functools.partial(case, **counts)
    CASES.append((function, counts))
    return function


@case
def only_computes():
    x = 0
    while True:
        x += 1
        if x % 3:
            x ^= 5
        else:
            x -= 2


@case
def calls_in_turns():
    while True:
        first()  # > first
        second(1)  # > second


def first():
    third(2, 3)  # > third
    return third(*(4, 5))  # > third


def second(x):
    y = x + 1
    third(y, b=x)  # > third
    return y


def third(a, b):
    c = a + b
    return c


@case(spins_at_its_leaf=(DEPTH, DEPTH))
def spins_deep_down():
    spins_at_its_leaf(DEPTH - 1)  # > spins_at_its_leaf


def spins_at_its_leaf(left):
    if left:
        return spins_at_its_leaf(left - 1)  # > spins_at_its_leaf
    x = 0
    while True:
        x += 1


@case(goes_down=(0, DEPTH + 1))
def goes_down_and_up():
    while True:
        goes_down(DEPTH)  # > goes_down


def goes_down(left):
    if left:
        goes_down(left - 1)  # > goes_down
    return left


@case
def spins_after_it_was_deep():
    # CPython gets more memory for its frames, and frees it.
    while True:
        goes_deeper(600)  # > goes_deeper
        x = 0
        while x < 300_000:
            x += 1


def goes_deeper(left):
    if left:
        goes_deeper(left - 1)  # > goes_deeper
    return left


@case
def drives_generators():
    while True:
        for x in outer_generator():  # > outer_generator
            x += 1
        sum(middle_generator())  # > middle_generator
        list(delegates(3))  # > delegates


def outer_generator():
    for x in middle_generator():  # > middle_generator
        yield x + 1


def middle_generator():
    for x in inner_generator():  # > inner_generator
        y = x * 2
        yield y


def inner_generator():
    for x in range(20):
        yield x


def delegates(left):
    if left:
        yield from delegates(left - 1)  # > delegates
    else:
        yield from inner_generator()  # > inner_generator


@case
def throws_into_generators():
    while True:
        generator = passes_on()  # > passes_on
        next(generator)  # > passes_on
        generator.throw(ValueError())  # > passes_on
        # Closes what it delegates to first, by itself.
        generator.close()  # > passes_on, catches


def passes_on():
    yield from catches()  # > catches


def catches():
    while True:
        try:
            yield 1
        except ValueError:
            pass


@case
def awaits():
    while True:
        coroutine = outer_coroutine()  # > outer_coroutine
        try:
            while True:
                coroutine.send(None)  # > outer_coroutine
        except StopIteration:
            pass


async def outer_coroutine():
    for _ in range(3):
        await inner_coroutine()  # > inner_coroutine


async def inner_coroutine():
    x = await suspends()  # > suspends
    return x


@types.coroutine
def suspends():
    yield 1
    yield 2


@case
def is_called_back():
    words = [str(i) for i in range(50)]
    while True:
        sorted(words, key=key_of)  # > key_of
        list(map(adds, range(50), range(50)))  # > adds


def key_of(word):
    return functools.reduce(adds_orders, word, 0)  # > adds_orders


def adds_orders(a, b):
    return adds(a, ord(b))  # > adds


def adds(a, b):
    return a + b


@case
def makes_objects():
    while True:
        thing = Thing(1)  # > __init__
        thing + thing  # > __add__
        thing.doubled  # > doubled
        thing.missing  # > __getattr__
        thing[0]  # > __getitem__
        [*thing]  # > __iter__, __getitem__
        with thing:  # > __enter__, __exit__
            pass


class Thing:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Thing(self.value + other.value)  # > __init__

    @property
    def doubled(self):
        return self + self  # > __add__

    def __getattr__(self, name):
        return adds(1, 2)  # > adds

    def __getitem__(self, index):
        return index

    def __iter__(self):
        yield self[0]  # > __getitem__

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@case
def catches_what_others_raise():
    while True:
        try:
            lets_through(3)  # > lets_through
        except KeyError:
            pass


def lets_through(left):
    try:
        return lets_through(left - 1) if left else raises()  # > lets_through, raises
    finally:
        adds(left, 1)  # > adds


def raises():
    raise KeyError


@case
def sums_in_c():
    while True:
        sum(range(3000))
        max(range(3000))


@case
def leaves_the_lock():
    data = bytes(1 << 20)
    while True:
        zlib.crc32(data)
        runs_in_c(data)  # > runs_in_c


def runs_in_c(data):
    return zlib.adler32(data)


@case
def evaluates():
    text = compile("adds(1, 2)", "text.py", "eval")
    scope = {"adds": adds_words}
    while True:
        eval(text, scope)  # > <module>


def adds_words(a, b):
    return str(a) + str(b)


def codes_below(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_below(const)


def functions():
    """What the source says of each function."""
    path = functions.__code__.co_filename
    with open(path) as file:
        source = file.read()
    text = source.splitlines()
    module = compile(source, path, "exec")
    for code in codes_below(module):
        if code is module:
            continue
        # Some instructions have no line; line 0 stands for it.
        lines = sorted({line or 0 for *_, line in code.co_lines()} | {code.co_firstlineno})
        calls = []
        for line in lines:
            marked = line and re.search("# > (.*)", text[line - 1])
            if marked:
                calls.append((line, marked[1].split(", ")))
        name = getattr(code, "co_qualname", code.co_name)
        yield {"key": code.co_name, "name": name, "file": path, "lines": lines, "calls": calls}
    yield {"key": "<module>", "name": "<module>", "file": "text.py", "lines": [0, 1], "calls": [(1, ["adds_words"])]}


def frames_of(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames


def spin(function, counts, said):
    # What is said and what follows it stand on one line.
    say(frames_of(sys._getframe()), function, counts); said.set(); function()


def say(below, function, counts):
    found = {"case": function.__name__, "tid": threading.get_native_id(), "below": below, "counts": counts}
    print(json.dumps(found), flush=True)


def main():
    for function in functions():
        print(json.dumps(function))
    sys.setswitchinterval(0.001)
    for function, counts in CASES:
        said = threading.Event()
        threading.Thread(target=spin, args=(function, counts, said), daemon=True).start()
        said.wait()
    print("ready", flush=True)
    threading.Event().wait()


main()
