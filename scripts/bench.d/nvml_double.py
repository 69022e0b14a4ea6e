"""The double of NVML (tests/nvml_double): where it was built, and scenarios for it (its scenario.rs says what is in one)."""

import json
import os
import tempfile

import profilers
from targets import ROOT

# W, while no kernel runs and while one does.
IDLE_W, BUSY_W = 100, 300
# What a recording says of a call that the driver was long in.
LONG_CALL = "a call of the driver took long"


def library():
    """The library, in $TORCHSPY_DOUBLES, beside the torchspy that is measured, or in this checkout's release build."""
    folder = os.environ.get("TORCHSPY_DOUBLES") or os.path.dirname(os.path.realpath(profilers.torchspy_path()))
    beside = os.path.join(folder, "libnvml_double.so")
    return beside if os.path.exists(beside) else os.path.join(ROOT, "target", "release", "libnvml_double.so")


def missing():
    """Why nothing can be recorded with it, or None."""
    if not os.path.exists(library()):
        return f"no double of NVML at {library()} (cargo build --release -p nvml_double)"
    return profilers.torchspy_missing()


def gpu(number, pid, activity):
    """A GPU that a process uses, with every figure that there is."""
    return {
        "uuid": f"GPU-{number:08x}-d0b1",
        "power_idle_mw": IDLE_W * 1000,
        "power_busy_mw": BUSY_W * 1000,
        "activity": activity,
        "throttle_busy": 4,
        "nvlink_mib": 1000.0,
        "processes": [{"pid": pid, "memory": 9 << 30}],
    }


def setting(folder, gpus, faults=()):
    """(options of torchspy, variables of its environment) for a machine with these GPUs."""
    path = tempfile.mktemp(prefix="scenario-", suffix=".json", dir=folder)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"gpus": gpus, "faults": list(faults)}, file)
    return ("--nvml-lib", library()), {"TORCHSPY_NVML_SCENARIO": path}


def machine(folder, pid, count, faults=()):
    """The same for `count` GPUs that are busy for three tenths of each half of a second."""
    activity = {"square": {"period_ms": 500, "busy_ms": 150}}
    return setting(folder, [gpu(number, pid, activity) for number in range(count)], faults)
