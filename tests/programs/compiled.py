"""Compiles the small C files beside this module into torchspy's cache folder, once per content."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-O2", "-g", "-Wall", "-Wextra", "-pthread"]


def _cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(os.environ.get("TORCHSPY_CACHE") or os.path.join(base, "torchspy"), "programs")
    os.makedirs(folder, exist_ok=True)
    return folder


def _build(source, suffix, flags):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("error: no C compiler found\nhint: install one (cc), or name it with CC")
    with open(os.path.join(HERE, source), "rb") as file:
        key = hashlib.sha256(file.read() + " ".join([compiler, *FLAGS, *flags]).encode()).hexdigest()[:12]
    output = os.path.join(_cache(), f"{os.path.splitext(source)[0]}-{key}{suffix}")
    if not os.path.exists(output):
        # Another process may build the same file: each writes its own and renames it into place.
        unfinished = f"{output}.{os.getpid()}"
        subprocess.run([compiler, *FLAGS, *flags, os.path.join(HERE, source), "-o", unfinished], check=True)
        os.replace(unfinished, output)
    return output


def library(source):
    """The path of `source` as a shared library."""
    return _build(source, ".so", ["-shared", "-fPIC"])


def executable(source):
    """The path of `source` as a program."""
    return _build(source, "", [])


def load(source, hold_gil=False):
    """`source` as a ctypes library; its functions run with the GIL released unless `hold_gil`."""
    return (ctypes.PyDLL if hold_gil else ctypes.CDLL)(library(source))


if __name__ == "__main__":
    # For tests that start a C target themselves: compiled.py [--library] SOURCE.c prints the path of what was built.
    arguments = [argument for argument in sys.argv[1:] if argument != "--library"]
    print((library if "--library" in sys.argv else executable)(os.path.basename(arguments[0])))
