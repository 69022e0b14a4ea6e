"""Programs that hang, each in its own way. usage: hangs.py deadlock|gil|read|condition|mutex|join|busy|strange; prints "ready PID" when it
does, and ends when its stdin is closed, or after five minutes."""

import ctypes
import itertools
import os
import signal
import sys
import threading
import time

READY = threading.Barrier(3)


def deadlock():
    first, second = threading.Lock(), threading.RLock()

    def forward():
        with first:
            READY.wait()
            with second:  # mark: forward
                pass

    def backward():
        with second:
            READY.wait()
            with first:  # mark: backward
                pass

    for work in (forward, backward):
        threading.Thread(target=work, name=work.__name__, daemon=True).start()
    READY.wait()


def gil():
    def hold():
        sum(itertools.repeat(1))  # mark: hold

    # Nobody can say so once it holds the lock.
    print("ready", os.getpid(), flush=True)
    threading.Thread(target=hold, name="holder", daemon=True).start()
    time.sleep(0.001)


def read():
    counted, name, rate, missing = 1040, "train", 0.5, None
    numbers = [1, 2, 3]

    def inner():
        return counted

    reader, _ = os.pipe()
    print("ready", os.getpid(), flush=True)
    os.read(reader, 1)  # mark: read
    return name, rate, missing, numbers, inner


def condition():
    """A lock that was taken without `with`; who waits for a signal of its condition gave it up."""
    mutex = threading.Lock()
    signal_of_it = threading.Condition(mutex)

    def listen():
        with signal_of_it:
            signal_of_it.wait()  # mark: listen

    def take():
        with mutex:  # mark: take
            pass

    threading.Thread(target=listen, name="listener", daemon=True).start()
    # Nobody but the listener has it until it waits.
    while not signal_of_it._waiters:
        time.sleep(0.001)
    mutex.acquire()
    threading.Thread(target=take, name="taker", daemon=True).start()


def mutex():
    """A mutex of the C library, held by a thread of its own."""
    library = ctypes.CDLL(None)
    place = ctypes.create_string_buffer(64)

    def hold():
        library.pthread_mutex_lock(place)
        READY.wait()
        time.sleep(300)  # mark: mutex holder

    def wait():
        READY.wait()
        library.pthread_mutex_lock(place)  # mark: mutex waiter

    for work in (hold, wait):
        threading.Thread(target=work, name=work.__name__, daemon=True).start()
    READY.wait()


def join():
    """Two threads that wait for each other's end."""
    threads = []

    def wait_for(other):
        READY.wait()
        threads[other].join()  # mark: join

    for name, other in (("first", 1), ("second", 0)):
        threads.append(threading.Thread(target=wait_for, args=(other,), name=name, daemon=True))
    for thread in threads:
        thread.start()
    READY.wait()


def busy():
    """The innermost function never stands still; the one that called it does."""
    counted = 1040
    print("ready", os.getpid(), flush=True)
    spin()  # mark: busy
    return counted


def spin():
    number = 0
    while True:
        number += 1
        number -= 1
        number += 2
        number -= 2


def strange():
    """Names and values that would act on a terminal."""
    code = compile("def run(text):\n    time.sleep(300)\n", "/tmp/\x1b[31m\x9b31m\u202estrange.py", "exec")
    names = {"time": time}
    exec(code, names)
    threading.Thread(target=names["run"], args=("\x1b]0;title\x07\x9b31m\u202e\n",), name="\x1b[31m\u202e\x9b", daemon=True).start()


def end_with_stdin():
    sys.stdin.buffer.read()
    os._exit(0)


def main():
    mode = sys.argv[1]
    # No Python code may run any more to do it.
    signal.alarm(300)
    if mode != "gil":
        threading.Thread(target=end_with_stdin, daemon=True, name="stdin").start()
    globals()[mode]()
    print("ready", os.getpid(), flush=True)
    time.sleep(300)


if __name__ == "__main__":
    main()
