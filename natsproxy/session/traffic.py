"""The traffic of a connection, or of many: frames by op and bytes at four points.

Each direction is counted where its bytes come in and where they go out: c2s from the client and to the
server, s2c from the server and to the client.  The numbers are in one list, so that many connections are
summed quickly.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from natsproxy.wire.ops import C2S, OPS, S2C, Direction, Op

WIDTH: Final = len(OPS) + 1  # the numbers of a point: its frames by op, and its bytes


class Point(NamedTuple):
    """One of the four points."""

    direction: Direction
    leg: str


POINTS: Final = (Point(C2S, "client"), Point(C2S, "server"), Point(S2C, "server"), Point(S2C, "client"))
FROM_CLIENT, TO_SERVER, FROM_SERVER, TO_CLIENT = range(4)


class Traffic:
    """Frames and bytes at the four points.  numbers: those of one point after the other."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: list[int] | None = None) -> None:
        self.numbers = [0] * (WIDTH * len(POINTS)) if numbers is None else numbers

    def add(self, other: Traffic) -> None:
        """Add the traffic of another connection."""
        self.numbers = [one + more for one, more in zip(self.numbers, other.numbers, strict=True)]

    def copy(self) -> Traffic:
        """Return a copy."""
        return Traffic(self.numbers.copy())

    def frames(self, point: int) -> list[int]:
        """Return the frames at a point, by op."""
        return self.numbers[point * WIDTH : point * WIDTH + WIDTH - 1]

    def bytes(self, point: int) -> int:
        """Return the bytes at a point."""
        return self.numbers[point * WIDTH + WIDTH - 1]

    def messages(self, point: int) -> int:
        """Return the messages at a point, with and without headers."""
        first = point * WIDTH
        ops = (Op.PUB, Op.HPUB) if POINTS[point].direction == C2S else (Op.MSG, Op.HMSG)
        return sum(self.numbers[first + op] for op in ops)
