"""Feels its own stops: spins on the clock in C under many Python frames and reports every gap.

Prints "ready PID", starts at a line on stdin, ends at SIGUSR1 (or after --limit seconds), then prints one line of
JSON: window_ns, gaps [[start_ns, length_ns, voluntary switches, involuntary switches], ...], lost, epoll {calls, eintr}.
"""

import argparse
import ctypes
import json
import os
import sys
import threading

import compiled

CAPACITY = 1 << 20


class Gap(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("length", ctypes.c_uint64), ("voluntary", ctypes.c_uint32), ("involuntary", ctypes.c_uint32)]


def under_frames(depth, function):
    return function() if depth <= 1 else under_frames(depth - 1, function)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleepers", type=int, default=0, help="Python threads that sleep in Event.wait()")
    parser.add_argument("--frames", type=int, default=40, help="Python frames under which it spins")
    parser.add_argument("--mode", choices=["spin", "epoll"], default="spin")
    parser.add_argument("--timeout-ms", type=int, default=50, help="of epoll_wait")
    parser.add_argument("--work-us", type=int, default=0, help="between two calls of epoll_wait")
    parser.add_argument("--threshold-us", type=float, default=5, help="shorter gaps are not recorded")
    parser.add_argument("--limit", type=float, default=600, help="seconds")
    parser.add_argument("--hold-gil", action="store_true", help="keep the GIL while spinning")
    parser.add_argument("--torch", action="store_true", help="import torch first")
    arguments = parser.parse_args()
    if arguments.torch:
        import torch  # noqa: F401
    native = compiled.load("probe.c", arguments.hold_gil)
    native.probe_spin.restype = ctypes.c_size_t
    native.probe_install()
    gaps, lost, window, counts = (Gap * CAPACITY)(), ctypes.c_uint64(), (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 2)()
    # Touched now, so that no page fault shows up as a gap later.
    ctypes.memset(gaps, 0xFF, ctypes.sizeof(gaps))
    limit, threshold = ctypes.c_uint64(int(arguments.limit * 1e9)), ctypes.c_uint64(int(arguments.threshold_us * 1e3))
    for number in range(arguments.sleepers):
        threading.Thread(target=threading.Event().wait, daemon=True, name=f"sleeper-{number}").start()

    def spin():
        return native.probe_spin(limit, threshold, gaps, ctypes.c_size_t(CAPACITY), ctypes.byref(lost), window)

    def wait():
        native.probe_epoll(limit, arguments.timeout_ms, ctypes.c_uint64(arguments.work_us * 1000), counts)
        return 0

    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    kept = under_frames(arguments.frames, spin if arguments.mode == "spin" else wait)
    result = {
        "window_ns": list(window),
        "gaps": [[gap.start, gap.length, gap.voluntary, gap.involuntary] for gap in gaps[:kept]],
        "lost": max(lost.value - kept, 0),
        "epoll": {"calls": counts[0], "eintr": counts[1]},
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
