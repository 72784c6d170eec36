"""Verdicts: the values that a rule may return about a frame.

A rule looks at one frame as it was received and returns one verdict, or None to leave it alone.  The
session carries verdicts out in the order of the stream; `rules/engine/chain.py` says how several combine.
Times are absolute nanoseconds of the proxy's one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Replace:
    """Send `raw` (one whole frame, or several) instead of the frame."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class ChangeHeaders:
    """Remove headers from the frame, then set others; a rule whose change has no effect does not fire.

    The changes of several rules are made together, when a later rule looks at the frame or none is left.
    put: by name the whole line, as `header_line` returns it.
    """

    remove: tuple[bytes, ...]
    put: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Drop:
    """Send nothing.  A verbose client still gets the `+OK` that the frame would have earned."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Do not pass the frame; its sender gets `-ERR '<text>'` at this frame's place in its stream."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Do not pass the frame; its sender gets `raw` (whole frames) at this frame's place in its stream."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Hold:
    """Send the frame `delay` ns later; frames behind it wait too, unless `overtake`."""

    delay: int
    overtake: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """Send the frame when its turn comes; frames behind it wait too, but PONGs and acks (c2s only).

    reserve: called with the time (ns) once nothing is ahead of the frame; returns the time of its turn.
    """

    reserve: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Inject:
    """Pass the frame and send `before` ahead of it and `after` behind it, to where it goes (whole frames)."""

    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Send the frame and `copies` more of it, at the same time."""

    copies: int = 1


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Send the frame with other values in `count` bytes of its body at most, which random numbers choose.

    Only the static decision of an action says so: on a frame it returns what to send (`kinds/corrupt.py`).
    """

    count: int


@dataclass(frozen=True, slots=True)
class StartCondition:
    """A link rule comes into force with the frame, which is the first to meet it (`engine/link_rules.py`)."""


@dataclass(frozen=True, slots=True)
class Reorder:
    """Send the frame after the next `by` frames of its direction, or at `until` if they do not come."""

    by: int
    until: int


class Cut(Enum):
    """The place of a connection's end: before a frame, inside it, or after it."""

    BEFORE = "before"
    HEAD = "head"
    PAYLOAD = "payload"
    AFTER = "after"

    def part(self, raw: bytes) -> bytes:
        """Return the bytes of a whole frame that its receiver still gets.

        HEAD: half of its control line.  PAYLOAD: the control line and half of the payload; of a frame that
        has none, half of the line.
        """
        if self is Cut.BEFORE:
            return b""
        if self is Cut.AFTER:
            return raw
        line = raw.index(b"\n") + 1
        inside = self is Cut.PAYLOAD and len(raw) > line
        return raw[: line + (len(raw) - line - len(b"\r\n")) // 2 if inside else line // 2]


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection with `cause` at the frame: its receiver gets what `at` says of it.

    raw: whole frames (an `-ERR`) that the client gets first.  reset: both legs end with RST: at once or,
    where the receiver gets anything of the frame, when it has that.
    """

    cause: str
    raw: bytes = b""
    reset: bool = False
    at: Cut = Cut.BEFORE


Verdict = (
    Replace
    | ChangeHeaders
    | Drop
    | Deny
    | Answer
    | Hold
    | Pace
    | Inject
    | Duplicate
    | Corrupt
    | Reorder
    | Close
    | StartCondition
)
