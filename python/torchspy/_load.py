"""Recordings as data frames."""

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from ._program import find_program

if TYPE_CHECKING:
    import pandas
    import polars

    Path = Union[str, "os.PathLike[str]"]


class RecordingError(ValueError):
    """A recording that cannot be read; its text is what the program says of it."""


@overload
def load(recording: "Path", *, stacks: bool = False, frames: Literal["pandas"] = "pandas") -> "pandas.DataFrame": ...
@overload
def load(recording: "Path", *, stacks: bool = False, frames: Literal["polars"]) -> "polars.DataFrame": ...
def load(recording: "Path", *, stacks: bool = False, frames: str = "pandas") -> Any:
    """The samples of a recording, a row each: what a thread did over ``weight_ns``.

    The columns are those of ``torchspy convert RECORDING -o FILE.parquet``, which is what this runs; the docs list them.

    Args:
        recording: a file that ``torchspy record`` wrote.
        stacks: a row per stack instead, with its frames from the root to the leaf; ``stack_id`` joins the two.
        frames: ``"pandas"`` (needs pandas and pyarrow) or ``"polars"``.

    Raises:
        RecordingError: it cannot be read.
        ImportError: the library of ``frames`` is not installed.
    """
    if frames not in ("pandas", "polars"):
        raise ValueError(f"frames={frames!r}: it is either 'pandas' or 'polars'")
    library = __import__(frames)
    with tempfile.TemporaryDirectory(prefix="torchspy-") as folder:
        samples = os.path.join(folder, "run.parquet")
        command = [find_program(), "convert", os.fspath(recording), "-o", samples]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise RecordingError(done.stderr.strip())
        return library.read_parquet(os.path.join(folder, "run.stacks.parquet") if stacks else samples)
