"""torchspy: a sampling profiler for PyTorch trainers.

The profiler is the command ``torchspy`` (also ``python -m torchspy``), which needs no change of the program that it
profiles. This package is for what a program or a notebook may want besides::

    with torchspy.region("augment"): ...         # a block that stacks and tables name
    frames = torchspy.load("run.tspy")           # the samples of a recording, as a data frame
"""

from ._load import RecordingError, load
from ._program import find_program
from ._regions import mark, region

__all__ = ["RecordingError", "find_program", "load", "mark", "region"]
