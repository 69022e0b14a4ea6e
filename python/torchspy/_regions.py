"""Names for parts of a program.

The sampler reads them from the source file, so the name has to be written there as text: neither call leaves anything
in memory that costs time.
"""

from __future__ import annotations

from typing import Callable, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])


class _Region:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None


_REGION = _Region()


def region(name: str) -> _Region:
    """Names the block of a ``with`` statement: ``with torchspy.region("augment"):``.

    Stacks have it as a frame, tables of phases as a row. It does nothing itself.
    """
    return _REGION


def _unchanged(function: _Function) -> _Function:
    return function


def mark(name: str) -> Callable[[_Function], _Function]:
    """Names the body of a function: ``@torchspy.mark("augment")``.

    The function itself is returned, so a call costs what it did.
    """
    return _unchanged
