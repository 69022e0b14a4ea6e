"""The simulated GPU node (docs/src/gpu-simulation.md): what is run on it, and what its truth log says."""

import json
import os
import struct

import profilers
from targets import ROOT

# Kinds of records, and their layout: tests/gpu_node/src/truth.rs.
WORK, CALL, WAIT = 1, 2, 3
HEADER_BYTES = 64
RECORD = struct.Struct("<QQIIIBBH")


def missing():
    """Why nothing can be run and recorded on it, or None."""
    folder = os.environ.get("TORCHSPY_DOUBLES") or os.path.join(ROOT, "target", "release")
    for library in ("libcuda_double.so", "libnvml_double.so"):
        if not os.path.exists(os.path.join(folder, library)):
            return f"no {library} in {folder} (cargo build --release -p cuda_double -p nvml_double)"
    return profilers.torchspy_missing()


def command(folder, scenario, words):
    """A command on a node that lives in a folder."""
    with open(os.path.join(folder, "scenario.json"), "w", encoding="utf-8") as file:
        json.dump(scenario, file)
    return [os.path.join(ROOT, "scripts", "gpu-sim"), "--folder", folder, "--", *map(str, words)]


def variables(folder):
    """Of a torchspy that records what runs on the node."""
    return {"TORCHSPY_GPU_SIM": folder, "LD_LIBRARY_PATH": folder}


def records(folder, kind):
    """Records of a kind of all processes: (start ns, end ns, tid, device)."""
    for name in os.listdir(folder):
        if not name.startswith("truth."):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            (count,) = struct.unpack("<Q", file.read(HEADER_BYTES)[:8])
            while chunk := file.read(min(RECORD.size * count, 1 << 20)):
                count -= len(chunk) // RECORD.size
                for start, end, _, tid, _, device, which, _ in RECORD.iter_unpack(chunk):
                    if which == kind:
                        yield start, end, tid, device


def refused(folder):
    """Calls that programs made and the doubles do not have."""
    found = set()
    for name in os.listdir(folder):
        if name.startswith("refused."):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found.update(file.read().split())
    return sorted(found)
