"""Verdicts: the values that a rule may return about a frame.

A rule looks at one frame as it was received and returns one verdict, or None to leave it alone.  The
session carries verdicts out in the order of the stream; `rules/engine/chain.py` says how several combine.
Times are absolute nanoseconds of the proxy's one clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replace:
    """Send `raw` (one whole frame, or several) instead of the frame."""

    raw: bytes


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
class Inject:
    """Pass the frame and send `before` ahead of it and `after` behind it, to where it goes (whole frames)."""

    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Send the frame and `copies` more of it, at the same time."""

    copies: int = 1


@dataclass(frozen=True, slots=True)
class StartCondition:
    """Pass the frame; a link rule has come into force with it (see `rules/engine/link_rules.py`)."""


@dataclass(frozen=True, slots=True)
class Reorder:
    """Send the frame after the next `by` frames of its direction, or at `until` if they do not come."""

    by: int
    until: int


@dataclass(frozen=True, slots=True)
class Close:
    """Do not pass the frame; end the connection with `cause`.

    raw: whole frames (an `-ERR`) that the client gets first.  reset: both legs end with RST, at once.
    """

    cause: str
    raw: bytes = b""
    reset: bool = False


Verdict = Replace | Drop | Deny | Answer | Hold | Inject | Duplicate | Reorder | Close | StartCondition
