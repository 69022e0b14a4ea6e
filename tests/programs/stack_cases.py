"""Holds one thread in each of many stack situations, all at the same time.

Each case runs in a thread of its own, and calls hold() at its innermost place: that says which frames Python itself sees
(sys._getframe), and then blocks in a lock. Prints a line of JSON for each (case, pid, tid, frames leaf first as name, file, line)
and "ready", and stays until it is killed. The main thread ends in a signal handler, or with the argument "second", which
holds the few cases that others keep from happening, in an atexit function.
"""

import ast
import asyncio
import atexit
import bisect
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import decimal
import enum
import fractions
import functools
import gc
import heapq
import importlib
import itertools
import json
import operator
import os
import pickle
import queue
import re
import runpy
import signal
import string
import sys
import tempfile
import threading
import traceback
import types
import typing
import warnings
import weakref
import xml.parsers.expat
import zipfile

GATE = threading.Lock()
GATE.acquire()
FOUND = {}
CASES = {}
SECOND = set()
NEW = sys.version_info


def name_of(code):
    return getattr(code, "co_qualname", code.co_name)


def frames_of(frame):
    frames = []
    while frame is not None:
        frames.append((name_of(frame.f_code), frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames


def hold(*arguments, **keywords):
    frames = frames_of(sys._getframe())
    frames[0] = (*frames[0][:2], HOLD_LINE)
    FOUND[threading.current_thread().name] = (threading.get_native_id(), frames)
    GATE.acquire()
    return 0


HOLD_LINE = hold.__code__.co_firstlineno + 4


def case(function):
    CASES[function.__name__] = function
    return function


def second(function):
    """A case that another one keeps from happening, such as a second collection of garbage: of the second process."""
    SECOND.add(function.__name__)
    return case(function)


# Calls


@case
def plain():
    hold()


@case
def nested():
    def outer():
        def inner():
            hold()

        inner()

    outer()


@case
def recursion(depth=30):
    if depth:
        return recursion(depth - 1)
    hold()


@case
def deep_recursion(depth=400):
    if depth == 0:
        hold()
    else:
        deep_recursion(depth - 1)


@case
def mutual_recursion(depth=20):
    def even(n):
        return odd(n - 1) if n else hold()

    def odd(n):
        return even(n - 1) if n else hold()

    even(depth)


@case
def star_arguments():
    def f(*args, **kwargs):
        return hold(*args, **kwargs)

    f(*range(50), **{f"k{i}": i for i in range(50)})


@case
def many_locals():
    names = "; ".join(f"v{i} = {i}" for i in range(600))
    scope = {"hold": hold}
    exec(compile(f"def big():\n {names}\n hold()\n", "big.py", "exec"), scope)
    scope["big"]()


@case
def big_frame():
    calls = ", ".join(["1"] * 3000 + ["hold()"])
    scope = {"hold": hold}
    exec(compile(f"def big():\n return [{calls}]\n", "stack.py", "exec"), scope)
    scope["big"]()


@case
def cell_variables():
    a, b = 1, 2

    def inner():
        nonlocal a
        a += b
        return hold(a)

    inner()


@case
def long_lines():
    x = (1 +
         2 +
         hold() +
         4)
    return x


@case
def expression_of_lines():
    def value(of):
        return of

    value(
        [
            value(1),
            *(
                hold(
                    value(2),
                )
                for _ in range(1)
            ),
            value(3),
        ]
    )


@case
def far_line():
    scope = {"hold": hold}
    exec(compile("\n" * 70000 + "hold()\n", "far.py", "exec"), scope)


@case
def lambda_call():
    (lambda: hold())()


def default_of(f=lambda: hold()):
    f()


@case
def lambda_default():
    default_of()


@case
def decorated():
    def decorate(f):
        @functools.wraps(f)
        def wrapper(*args):
            return f(*args)

        return wrapper

    @decorate
    @decorate
    def target():
        hold()

    target()


@case
def while_decorating():
    def decorate(f):
        hold()
        return f

    @decorate
    def target():
        pass


@case
def unicode_name():
    def größe_名前():
        hold()

    größe_名前()


@case
def long_name():
    name = "f" * 200
    scope = {"hold": hold}
    exec(f"def {name}():\n hold()\n", scope)
    scope[name]()


@case
def specialised_calls():
    def g(stop):
        if stop:
            hold()

    for i in range(200):
        g(i == 199)


# Objects


class Base:
    def __init__(self):
        hold()


@case
def init():
    Base()


@case
def init_inlined():
    class Late:
        def __init__(self, stop):
            if stop:
                hold()

    for i in range(200):
        Late(i == 199)


@case
def init_super():
    class Derived(Base):
        def __init__(self):
            super().__init__()

    Derived()


@case
def new():
    class N:
        def __new__(cls):
            hold()

    N()


@case
def class_body():
    class Body:
        hold()


@case
def metaclass():
    class Meta(type):
        def __new__(mcs, *args):
            hold()
            return super().__new__(mcs, *args)

    class Made(metaclass=Meta):
        pass


@case
def metaclass_call():
    class Meta(type):
        def __call__(cls):
            hold()

    class Made(metaclass=Meta):
        pass

    Made()


@case
def init_subclass():
    class Parent:
        def __init_subclass__(cls):
            hold()

    class Child(Parent):
        pass


@case
def set_name():
    class Descriptor:
        def __set_name__(self, owner, name):
            hold()

    class Owner:
        d = Descriptor()


@case
def property_get():
    class P:
        @property
        def x(self):
            return hold()

    for _ in range(2):
        P().x


@case
def property_set():
    class P:
        def set(self, value):
            hold()

        x = property(None, set)

    P().x = 1


@case
def cached_property():
    class P:
        @functools.cached_property
        def x(self):
            return hold()

    P().x


@case
def descriptor_get():
    class D:
        def __get__(self, instance, owner):
            hold()

    class P:
        x = D()

    P().x


@case
def getattr_hook():
    class P:
        def __getattr__(self, name):
            hold()

    P().missing


@case
def getattribute_hook():
    class P:
        def __getattribute__(self, name):
            hold()

    P().x


@case
def setattr_hook():
    class P:
        def __setattr__(self, name, value):
            hold()

    P().x = 1


@case
def call_hook():
    class P:
        def __call__(self):
            hold()

    P()()


@case
def operator_add():
    class P:
        def __radd__(self, other):
            hold()
            return self

    1 + P()


@case
def compare_eq():
    class P:
        def __eq__(self, other):
            hold()

    [P()].index(1)


@case
def hash_in_dict():
    class P:
        def __hash__(self):
            hold()
            return 1

    {P(): 1}


@case
def getitem():
    class P:
        def __getitem__(self, i):
            hold()
            raise IndexError

    list(P())


@case
def missing_key():
    class D(dict):
        def __missing__(self, key):
            hold()

    D()["x"]


@case
def default_factory():
    collections.defaultdict(hold)["x"]


@case
def contains():
    class P:
        def __contains__(self, x):
            hold()

    1 in P()


@case
def bool_hook():
    class P:
        def __bool__(self):
            hold()
            return True

    if P():
        pass


@case
def repr_in_format():
    class P:
        def __repr__(self):
            hold()
            return ""

    f"{P()!r:>10}"


@case
def str_format():
    class P:
        def __format__(self, spec):
            hold()
            return ""

    "{:x}".format(P())


@case
def index_hook():
    class P:
        def __index__(self):
            hold()
            return 0

    [1][P()]


@case
def dataclass_post_init():
    @dataclasses.dataclass
    class D:
        x: int

        def __post_init__(self):
            hold()

    D(1)


@case
def dataclass_factory():
    @dataclasses.dataclass
    class D:
        x: int = dataclasses.field(default_factory=hold)

    D()


@case
def enum_missing():
    class E(enum.Enum):
        A = 1

        @classmethod
        def _missing_(cls, value):
            hold()
            return cls.A

    E(5)


@case
def typing_generic():
    T = typing.TypeVar("T")

    class G(typing.Generic[T]):
        def __init__(self):
            hold()

    G[int]()


@case
def del_by_refcount():
    class P:
        def __del__(self):
            hold()

    p = P()
    p = None


@case
def del_by_collector():
    class P:
        def __del__(self):
            hold()

    p = P()
    p.me = p
    p = None
    gc.collect()


@case
def weakref_callback():
    class P:
        pass

    p = P()
    r = weakref.ref(p, hold)
    p = None
    return r


@case
def finalize():
    class P:
        pass

    p = P()
    weakref.finalize(p, hold)
    p = None


# Generators


@case
def generator():
    def g():
        yield hold()

    next(g())


@case
def generator_for():
    def g():
        yield 1
        hold()

    for _ in g():
        pass


@case
def generator_expression():
    sum(hold() for _ in range(1))


@case
def yield_from():
    def inner():
        yield 1
        hold()

    def outer():
        yield from inner()

    for _ in outer():
        pass


@case
def yield_from_deep():
    def tower(n):
        if n:
            yield from tower(n - 1)
        else:
            yield 1
            hold()

    list(tower(20))


@case
def send():
    def g():
        x = yield
        hold(x)

    g_ = g()
    next(g_)
    g_.send(1)


@case
def throw():
    def g():
        try:
            yield
        except ValueError:
            hold()

    g_ = g()
    next(g_)
    g_.throw(ValueError())


@case
def throw_through_yield_from():
    def inner():
        try:
            yield
        except ValueError:
            hold()

    def outer():
        yield from inner()

    o = outer()
    next(o)
    o.throw(ValueError())


@case
def throw_through_many():
    def tower(n):
        if n:
            yield from tower(n - 1)
        else:
            try:
                yield
            except ValueError:
                hold()

    o = tower(5)
    next(o)
    o.throw(ValueError())


@case
def throw_then_next():
    # After a throw that came back by a yield the frames are linked as ever.
    def inner():
        try:
            yield
        except ValueError:
            yield
            hold()

    def outer():
        yield from inner()

    o = outer()
    next(o)
    o.throw(ValueError())
    next(o)


@case
def throw_to_iterator():
    class Iterator:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def throw(self, *args):
            hold()

    def outer():
        yield from Iterator()

    o = outer()
    next(o)
    o.throw(ValueError())


@case
def close():
    def g():
        try:
            yield
        finally:
            hold()

    g_ = g()
    next(g_)
    g_.close()


@case
def close_through_yield_from():
    def inner():
        try:
            yield
        finally:
            hold()

    def outer():
        yield from inner()

    o = outer()
    next(o)
    o.close()


@case
def close_by_refcount():
    def g():
        try:
            yield
        finally:
            hold()

    g_ = g()
    next(g_)
    del g_


@second
def close_by_collector():
    def g(box):
        try:
            yield
        finally:
            hold()

    box = []
    g_ = g(box)
    box.append(g_)
    next(g_)
    del g_, box
    gc.collect()


@case
def types_coroutine():
    @types.coroutine
    def g():
        yield 1
        hold()

    async def f():
        await g()

    c = f()
    c.send(None)
    c.send(None)


# Coroutines


@case
def coroutine_send():
    async def f():
        hold()

    f().send(None)


@case
def await_chain():
    async def leaf():
        hold()

    async def middle():
        await leaf()

    async def root():
        await middle()

    root().send(None)


@case
def coroutine_throw():
    class Awaited:
        def __await__(self):
            try:
                yield
            except ValueError:
                hold()

    async def leaf():
        await Awaited()

    async def root():
        await leaf()

    c = root()
    c.send(None)
    with contextlib.suppress(StopIteration):
        c.throw(ValueError())


@case
def async_generator():
    async def g():
        yield hold()

    async def f():
        async for _ in g():
            pass

    f().send(None)


@case
def async_with():
    class A:
        async def __aenter__(self):
            hold()

        async def __aexit__(self, *args):
            pass

    async def f():
        async with A():
            pass

    f().send(None)


@case
def async_comprehension():
    async def g():
        yield 1

    async def f():
        return [hold() async for _ in g()]

    f().send(None)


@case
def async_generator_close():
    async def g():
        try:
            yield
        finally:
            hold()

    async def f():
        a = g()
        await a.asend(None)
        await a.aclose()

    f().send(None)


@case
def asyncio_run():
    async def f():
        hold()

    asyncio.run(f())


@case
def asyncio_task():
    async def leaf():
        await asyncio.sleep(0)
        hold()

    async def f():
        await asyncio.gather(leaf(), asyncio.sleep(0))

    asyncio.run(f())


@case
def asyncio_callback():
    async def f():
        asyncio.get_running_loop().call_soon(hold)
        await asyncio.sleep(0)

    asyncio.run(f())


@case
def asyncio_cancel():
    async def leaf():
        try:
            await asyncio.sleep(100)
        finally:
            hold()

    async def f():
        task = asyncio.ensure_future(leaf())
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(f())


# Comprehensions and iteration


@case
def list_comprehension():
    [hold() for _ in range(1)]


@case
def dict_comprehension():
    {i: hold() for i in range(1)}


@case
def nested_comprehension():
    [[hold() for _ in range(1)] for _ in range(1)]


@case
def iterator_next():
    class I:
        def __iter__(self):
            return self

        def __next__(self):
            hold()
            raise StopIteration

    for _ in I():
        pass


@case
def iter_callable():
    list(iter(hold, 0))


@case
def map_list():
    list(map(hold, [1]))


@case
def filter_list():
    list(filter(lambda x: hold(), [1]))


@case
def itertools_chain():
    list(itertools.starmap(hold, [(1, 2)]))


# C to Python


@case
def sort_key():
    sorted([2, 1], key=hold)


@case
def sort_compare():
    sorted([2, 1], key=functools.cmp_to_key(lambda a, b: hold()))


@case
def reduce():
    functools.reduce(hold, [1, 2])


@case
def partial():
    functools.partial(hold, 1)(2)


@case
def lru_cache():
    @functools.lru_cache
    def f(x):
        hold()

    f(1)


@case
def singledispatch():
    @functools.singledispatch
    def f(x):
        hold()

    f(1)


@case
def heap_compare():
    class P:
        def __lt__(self, other):
            hold()

    heapq.heappush([P()], P())


@case
def bisect_key():
    class P:
        def __lt__(self, other):
            hold()

    bisect.bisect([1], P())


@case
def max_key():
    max([1, 2], key=hold)


@case
def regex_sub():
    re.sub("a", lambda m: str(hold()), "a")


@case
def json_default():
    json.dumps(object(), default=hold)


@case
def json_hook():
    json.loads('{"a": 1}', object_hook=hold)


class Pickled:
    def __reduce__(self):
        hold()
        return Pickled, ()


@case
def pickle_reduce():
    pickle.dumps(Pickled())


@case
def copy_deep():
    copy.deepcopy(Pickled())


class Unpickled:
    def __setstate__(self, state):
        hold()


@case
def unpickle():
    u = Unpickled()
    u.x = 1
    pickle.loads(pickle.dumps(u))


@case
def ctypes_callback():
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: hold())(1)


@case
def ctypes_qsort():
    compare = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)
    )(lambda a, b: hold())
    array = (ctypes.c_int * 3)(3, 2, 1)
    ctypes.CDLL(None).qsort(array, 3, 4, compare)


@case
def ctypes_python_api():
    api = ctypes.pythonapi.PyObject_CallNoArgs if NEW >= (3, 9) else None
    api.restype, api.argtypes = ctypes.py_object, [ctypes.py_object]
    api(hold)


@case
def expat_callback():
    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = hold
    parser.Parse("<a/>", True)


@case
def decimal_compare():
    class P(fractions.Fraction):
        @property
        def denominator(self):
            hold()
            return 1

    decimal.Decimal(2) < P(1, 2)


@case
def operator_call():
    class P:
        def meth(self):
            hold()

    operator.methodcaller("meth")(P())


@case
def dict_update():
    class P:
        def keys(self):
            hold()
            return []

    {}.update(P())


@case
def string_template():
    class T(dict):
        def __getitem__(self, key):
            return hold()

    string.Template("$x").substitute(T())


@case
def print_to_file():
    class F:
        def write(self, text):
            hold()

    print("x", file=F())


@case
def isinstance_hook():
    class Meta(type):
        def __instancecheck__(cls, instance):
            hold()

    class M(metaclass=Meta):
        pass

    isinstance(1, M)


@case
def contextvars_run():
    contextvars.copy_context().run(hold)


@case
def warning_shown():
    class W(UserWarning):
        def __str__(self):
            hold()
            return ""

    with contextlib.redirect_stderr(open(os.devnull, "w")):
        warnings.warn(W())


# Code


@case
def exec_string():
    exec("def f():\n  hold()\nf()", {"hold": hold})


@case
def eval_string():
    eval("hold()")


@case
def eval_lambda():
    eval("(lambda: hold())()")


@case
def odd_filename():
    exec(compile("\nhold()", "<a b/ü [x] \\ 'q' & 名>.py", "exec"), {"hold": hold})


@case
def no_filename():
    exec(compile("def f():\n hold()\nf()", "", "exec"), {"hold": hold})


@case
def compiled_tree():
    tree = ast.parse("hold()")
    ast.increment_lineno(tree, 41)
    exec(compile(tree, "tree.py", "exec"), {"hold": hold})


@case
def replaced_code():
    def f():
        hold()

    f.__code__ = f.__code__.replace(co_name="renamed", co_filename="replaced.py")
    f()


FOLDER = tempfile.mkdtemp(prefix="stack_cases")
sys.path.insert(0, FOLDER)


@case
def import_time():
    with open(f"{FOLDER}/held_module.py", "w") as file:
        file.write("import stack_cases_hold\n\nstack_cases_hold.hold()\n")
    importlib.invalidate_caches()
    import held_module  # noqa: F401


@case
def import_module():
    with open(f"{FOLDER}/held_other.py", "w") as file:
        file.write("import stack_cases_hold\n\n\nclass A:\n    stack_cases_hold.hold()\n")
    importlib.invalidate_caches()
    importlib.import_module("held_other")


@case
def run_path():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ran.py")
        with open(path, "w") as script:
            script.write("def f():\n    hold()\n\nif __name__ == '__main__':\n    f()\n")
        runpy.run_path(path, {"hold": hold}, "__main__")


@case
def zip_import():
    with zipfile.ZipFile(f"{FOLDER}/held.zip", "w") as archive:
        archive.writestr("in_zip.py", "import stack_cases_hold\n\ndef f():\n    stack_cases_hold.hold()\n")
    sys.path.append(f"{FOLDER}/held.zip")
    importlib.invalidate_caches()
    import in_zip

    in_zip.f()


# Exceptions


@case
def except_handler():
    try:
        raise ValueError
    except ValueError:
        hold()


@case
def nested_handlers():
    try:
        raise ValueError
    except ValueError:
        try:
            raise KeyError
        except KeyError:
            hold()


@case
def finally_block():
    try:
        return 1
    finally:
        hold()


@case
def finally_after_raise():
    try:
        try:
            raise ValueError
        finally:
            hold()
    except ValueError:
        pass


@case
def with_enter():
    class C:
        def __enter__(self):
            hold()

        def __exit__(self, *args):
            pass

    with C():
        pass


@case
def with_exit():
    class C:
        def __enter__(self):
            pass

        def __exit__(self, *args):
            hold()

    with C():
        1


@case
def with_exit_after_raise():
    class C:
        def __enter__(self):
            pass

        def __exit__(self, *args):
            hold()
            return True

    with C():
        raise ValueError


@case
def contextmanager():
    @contextlib.contextmanager
    def manager():
        yield
        hold()

    with manager():
        pass


@case
def contextmanager_throw():
    @contextlib.contextmanager
    def manager():
        try:
            yield
        except ValueError:
            hold()

    with manager():
        raise ValueError


@case
def exit_stack():
    with contextlib.ExitStack() as stack:
        stack.callback(hold)


@case
def traceback_format():
    class E(Exception):
        def __str__(self):
            hold()
            return ""

    try:
        raise E
    except E:
        traceback.format_exc()


@case
def exception_init():
    class E(Exception):
        def __init__(self):
            hold()

    try:
        raise E
    except E:
        pass


@case
def unraisable():
    class P:
        def __del__(self):
            raise ValueError

    held = threading.current_thread()

    def hook(argument):
        if threading.current_thread() is held:
            hold()

    sys.unraisablehook = hook
    P()


# Tracing


def callee():
    hold()


@case
def trace_active():
    sys.settrace(lambda *args: None)
    callee()


@case
def trace_local_active():
    def local(*args):
        return local

    sys.settrace(local)
    callee()


@case
def trace_function():
    def trace(*args):
        sys.settrace(None)
        hold()

    sys.settrace(trace)
    callee()


@case
def profile_active():
    sys.setprofile(lambda *args: None)
    callee()


@case
def profile_function():
    def profile(*args):
        sys.setprofile(None)
        hold()

    sys.setprofile(profile)
    callee()


@case
def audit_hook():
    held = threading.current_thread()

    def hook(event, args):
        if event == "held" and threading.current_thread() is held:
            hold()

    sys.addaudithook(hook)
    sys.audit("held")


# Threads


@case
def thread_subclass():
    class T(threading.Thread):
        def run(self):
            hold()

    T(name="thread_subclass", daemon=True).start()


@case
def thread_raw():
    import _thread

    def run():
        threading.current_thread().name = "thread_raw"
        hold()

    _thread.start_new_thread(run, ())


@case
def thread_timer():
    timer = threading.Timer(0, hold)
    timer.name = "thread_timer"
    timer.daemon = True
    timer.start()


@case
def thread_pool():
    def work():
        threading.current_thread().name = "thread_pool"
        hold()

    POOL.submit(work)


POOL = concurrent.futures.ThreadPoolExecutor(1)


@case
def queue_get():
    class Q(queue.Queue):
        def _get(self):
            hold()

    q = Q()
    q.put(1)
    q.get()


@case
def condition_wait_for():
    condition = threading.Condition()
    with condition:
        condition.wait_for(hold, 1)


@case
def local_init():
    class L(threading.local):
        def __init__(self):
            hold()

    L().x = 1


# Newer syntax and calls, in source so that older Pythons can read this file


def newer(version, name, source):
    if NEW >= version:
        scope = {"hold": hold, "sys": sys, "asyncio": asyncio}
        exec(compile(source, f"{name}.py", "exec"), scope)
        CASES[name] = scope["run"]


newer((3, 10), "match_statement", """
class P:
    __match_args__ = ("x",)
    @property
    def x(self):
        hold()
def run():
    match P():
        case P(1):
            pass
        case _:
            pass
""")
newer((3, 11), "except_star", """
def run():
    try:
        raise ExceptionGroup("", [ValueError()])
    except* ValueError:
        hold()
""")
newer((3, 11), "task_group", """
async def leaf():
    hold()
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf())
def run():
    asyncio.run(main())
""")
newer((3, 12), "type_parameters", """
def run():
    class C[T]:
        hold()
""")
newer((3, 12), "type_alias", """
def run():
    type A = hold()
    A.__value__
""")
newer((3, 12), "eager_task", """
async def leaf():
    hold()
async def main():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    await asyncio.ensure_future(leaf())
def run():
    asyncio.run(main())
""")
newer((3, 12), "buffer_protocol", """
class B:
    def __buffer__(self, flags):
        hold()
        return memoryview(b"")
def run():
    bytes(B())
""")
newer((3, 12), "monitoring_callback", """
import threading
def run():
    here = threading.current_thread()
    def started(code, offset):
        if threading.current_thread() is here and code is callee.__code__:
            hold()
    def callee():
        pass
    sys.monitoring.use_tool_id(4, "cases")
    sys.monitoring.register_callback(4, sys.monitoring.events.PY_START, started)
    sys.monitoring.set_local_events(4, callee.__code__, sys.monitoring.events.PY_START)
    callee()
""")
newer((3, 12), "monitoring_active", """
def run():
    def callee():
        hold()
    sys.monitoring.use_tool_id(3, "cases")
    sys.monitoring.register_callback(3, sys.monitoring.events.LINE, lambda *args: None)
    sys.monitoring.set_local_events(3, callee.__code__, sys.monitoring.events.LINE)
    callee()
""")
newer((3, 14), "annotations_evaluated", """
def run():
    def f(x: hold()):
        pass
    f.__annotations__
""")
newer((3, 14), "finally_return", """
def run():
    import annotationlib
    class C:
        x: hold()
    annotationlib.get_annotations(C)
""")


def main():
    gc.disable()
    threading.stack_size(512 << 10)
    signal.signal(signal.SIGUSR1, lambda *args: hold())
    hold_module = types.ModuleType("stack_cases_hold")
    hold_module.hold = hold
    sys.modules["stack_cases_hold"] = hold_module
    is_second = sys.argv[1:] == ["second"]
    names = [name for name in CASES if (name in SECOND) == is_second]
    for name in names:
        threading.Thread(target=CASES[name], name=name, daemon=True).start()
        # One after the other: importing and class bodies hold locks of their own.
        while name not in FOUND:
            threading.Event().wait(0.001)
    reporter = threading.Thread(target=report, args=(len(names) + 1,), daemon=True)
    reporter.start()
    if is_second:
        threading.current_thread().name = "at_exit"
        atexit.register(hold)
    else:
        threading.current_thread().name = "signal_handler"
        os.kill(os.getpid(), signal.SIGUSR1)


def report(count):
    while len(FOUND) < count:
        threading.Event().wait(0.001)
    for name, (tid, frames) in FOUND.items():
        print(json.dumps({"case": name, "pid": os.getpid(), "tid": tid, "frames": frames}))
    print("ready", flush=True)
    threading.Event().wait()


main()
