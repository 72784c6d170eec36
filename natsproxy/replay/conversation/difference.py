"""The difference between a live frame and a recorded one, in words for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_AROUND: Final = 20  # letters shown before the first that differs
_SHOWN: Final = 60
_BLOCK: Final = 4096


class _Absent:
    """The value of a header or a member that is not there."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = _Absent()


class DifferenceText(NamedTuple):
    """A difference as people see it.

    recorded, live: the values, cut around the place where the two begin to differ.
    """

    field: str
    place: str
    recorded: str
    live: str
    note: str

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.place}: {self.recorded} recorded, {self.live} sent{note}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two frames.

    field: "subject", "queue", "reply", "headers" or "body".  place: a part of it (`/items/0/qty`, `header X`,
    `token 3 of the subject`).  ours, theirs: the recorded and the live value, bytes or parts of JSON.
    note: a clause that explains values that look as if they could agree.
    """

    field: str
    place: str
    ours: Any
    theirs: Any
    note: str = ""

    @property
    def text(self) -> DifferenceText:
        """The part for people, which does not keep the values alive."""
        ours, theirs = _text(self.ours), _text(self.theirs)
        at = _first_difference(ours, theirs)
        return DifferenceText(self.field, self.place, _cut(ours, at), _cut(theirs, at), self.note)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace"))
    if isinstance(value, dict):
        return f"an object of {len(value)} members"
    if isinstance(value, list):
        return f"a list of {len(value)} entries"
    return repr(value) if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _first_difference(ours: str, theirs: str) -> int:
    start = 0
    while start < len(ours) and ours[start : start + _BLOCK] == theirs[start : start + _BLOCK]:
        start += _BLOCK
    block = zip(ours[start : start + _BLOCK], theirs[start : start + _BLOCK], strict=False)
    return next((start + n for n, (a, b) in enumerate(block) if a != b), min(len(ours), len(theirs)))


def _cut(text: str, at: int) -> str:
    start = max(0, at - _AROUND) if len(text) > _SHOWN else 0
    end = start + _SHOWN
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
