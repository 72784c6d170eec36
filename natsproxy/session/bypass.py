"""The bypass: frames that nobody wants skip the session, and are counted here afterwards.

A native plane forwards such frames by itself while a direction is `clear`: the session has nothing to do
between two of them.  It also applies decisions that the rules made in advance.  Before the session does
anything it catches up on the frames that bypassed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from natsproxy.session.connection import ProxiedConnection
from natsproxy.session.direction import OpenFrame
from natsproxy.session.phase import Phase, PipePhase
from natsproxy.session.rule_runner import RuleRunner
from natsproxy.wire.ops import Direction, Op


class OpenPassed(NamedTuple):
    """A bypassed frame that is not complete: the session takes it over.

    ordinal, out: its numbers on both legs.  size: its bytes, `missing` of which have not come.  data: those
    that have, where they are recorded, else its control line.
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
"""Frames received, frames sent, bytes received, frames by op, the fields of an `OpenPassed`, bytes sent, and
dropped frames by op."""


class PassedFrames(Protocol):
    """Counts the frames that a plane passed by itself."""

    def take(self, direction: int) -> Passed | None:
        """Return the counts since the last call, None if nothing passed."""
        ...


class Bypass:
    """Decides when a plane may forward frames by itself, and counts them afterwards."""

    __slots__ = ("_connection", "_lifecycle", "_runner")

    def __init__(self, connection: ProxiedConnection, runner: RuleRunner) -> None:
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._runner = runner

    def clear(self, direction: Direction) -> bool:
        """Return whether unwanted frames may bypass the session: it has nothing to do between them."""
        phase, pipe = self._lifecycle.phase, self._connection.pipes[direction]
        return (
            (phase is Phase.READY or phase is Phase.CONNECTED)
            and pipe.phase is PipePhase.FRAMED
            and pipe.open is None
            and not (pipe.outbox.active or pipe.swallowing or pipe.later)
            and pipe.scanner.idle
            and not pipe.records.suspicious
            and self._lifecycle.drained is None  # a drain waits for the last answer
        )

    def decisions(self, direction: Direction) -> object | None:
        """Return the rules' decisions that hold now (see `ConnectionRules.decisions`)."""
        if self._runner.batch_function(self._connection.pipes[direction]) is None:
            return None
        return self._runner.rules.decisions(direction)

    def catch_up(self, passed: PassedFrames) -> None:
        """Count the frames that were bypassed, and emit the firings of rules on them."""
        for pipe in self._connection.pipes:
            taken = passed.take(pipe.direction)
            if taken is None:
                continue
            frames, sent, size, ops, opened, out, dropped = taken
            pipe.in_bytes += size
            pipe.sender.out_next += sent
            pipe.sender.out_bytes += out
            for op, count in dropped:
                pipe.sender.surplus[op] -= count
            pipe.scanner.skip(frames, size, ops)
            if opened is not None:
                op, ordinal, went, whole, missing, data = OpenPassed(*opened)
                pipe.open = OpenFrame(Op(op), ordinal, data, data, None, whole, went)
                pipe.scanner.skip_into(missing)
            self._runner.emit_fired()

    def leave(self, rests: tuple[bytes, bytes]) -> None:
        """Take over the unfinished control lines from a plane that gives the legs back."""
        for pipe, rest in zip(self._connection.pipes, rests, strict=True):
            if rest:
                pipe.in_bytes += len(rest)
                pipe.scanner.feed(rest)
