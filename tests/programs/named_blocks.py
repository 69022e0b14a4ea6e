"""Blocks with names: sleeps in the innermost until its input has a line, then computes in each for a second."""
import sys
import time

import torchspy


class record_function:
    """Of the form of torch.profiler's."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@torchspy.mark("decode")
def decode(seconds):
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
    return count


def wait():
    with torchspy.region("augment"), record_function("outer block"):
        with record_function(sys.argv[0]):
            print("ready", flush=True)
            sys.stdin.readline()  # waits here


def train():
    wait()
    with torchspy.region("augment"):
        decode(1)


train()
