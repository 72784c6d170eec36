"""Runs of programs, written by hand as captures in text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from natsproxy.events import Firing
from natsproxy.sweep.values import OpenConnection, Place, Position, ProgramRun, Trial

MS = 1_000_000
_HEAD = """natsproxy text 1
recording
  recorder: f26b5798ed13617642c158d8e288228a
  started: 2026-11-22T09:38:51Z
  mono: 0

"""


def capture(path: Path, text: str) -> Path:
    """Write a conversation: lines of a capture in text, one millisecond for each line in the first column.

    A line that begins with `@` says its own time.
    """
    lines = []
    for line in text.strip("\n").splitlines():
        if line and not line.startswith((" ", "@", "#")):
            lines.append("@ +1ms")
        lines.append(line)
    path.write_text(_HEAD + "\n".join(lines) + "\n")
    return path


def run(path: Path, text: str, *, code: int | None = 0, at: int | None = None, **facts: Any) -> ProgramRun:
    """Return a run with this conversation.  at: the line (from 1) at which a fault took place, on a frame."""
    firings = facts.pop("firings", None)
    if firings is None:
        firings = [] if at is None else [firing(at)]
    return ProgramRun(code, 0.5, 30.0, capture(path, text), firings, **facts)


def firing(at: int, rule: str = "fault", ordinal: int | None = 0) -> Firing:
    """Return the firing of a rule at a line of the conversation."""
    return Firing(at * MS, 1, rule, "drop", "c2s", ordinal, 1, "drop")


def trial(
    fault: str = "drop",
    *,
    what: str = "PUB",
    direction: str = "c2s",
    subject: str = "orders.*",
    n: int = 1,
    state: str = "",
    rules: Sequence[dict[str, Any]] = ({"name": "fault", "kind": "drop"},),
    key: str = "worker/1",
    of: str = "",
) -> Trial:
    """Return a trial."""
    return Trial(fault, Place(Position(key, direction, what, subject, n), state, of=of), tuple(rules))


def deaf(**facts: Any) -> list[OpenConnection]:
    """Return one open connection."""
    return [OpenConnection("worker/1", **{"subscriptions": 1, "alive": True, "unread": 0, **facts})]
