"""The frames that went past a session (see `bypass.py`), as their plane hands them over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class OpenPassed(NamedTuple):
    """A frame that went by and whose end has not come: the session goes on with it.

    ordinal, out: its numbers on both legs.  size: its bytes, `missing` of which have not come.  data: the
    others where they are recorded, else its control line.
    """

    op: int
    ordinal: int
    out: int
    size: int
    missing: int
    data: bytes


Passed = tuple[
    int,
    int,
    int,
    Iterable[tuple[int, int]],
    tuple[int, int, int, int, int, bytes] | None,
    int,
    Iterable[tuple[int, int]],
]
"""Frames, how many of them went on, bytes, frames by op, the fields of an `OpenPassed`, bytes that went on,
and dropped frames by op."""


class PassedFrames(Protocol):
    """Keeps count of the frames that went by."""

    def take(self, direction: int) -> Passed | None:
        """Return the frames since the last call, None for none."""
        ...
