"""Parsing of buffers that hold whole frames only, for captures, tests and replays."""

from __future__ import annotations

from collections.abc import Iterator

from natsproxy.errors import ProtocolError
from natsproxy.wire.frames import Frame, Malformed, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, Direction
from natsproxy.wire.scanner import Interest, Scanner

EVERYTHING = Interest((Clause(ALL_OPS, Need.PAYLOAD),))
_LINES = Interest((Clause(ALL_OPS, Need.LINE),))
_NO_LIMIT = 1 << 30


def frames(data: bytes, direction: Direction) -> Iterator[Frame]:
    """Yield the frames of `data`, which must hold whole frames only.

    Raises ProtocolError, with the offset in `data`, for bytes that are not a frame, or not a whole one.
    """
    scanner = Scanner(direction, EVERYTHING, line_limit=1 << 20, hold=_NO_LIMIT, buffer_limit=_NO_LIMIT)
    scanner.feed(data)
    while (segment := scanner.next()) is not None:
        if isinstance(segment, Frame):
            yield segment
        elif isinstance(segment, Malformed):
            raise ProtocolError(direction.label, segment.offset, segment.reason)
        else:
            raise ProtocolError(direction.label, scanner.offset, "an operation that NATS does not have")
    if scanner.held:
        raise ProtocolError(direction.label, scanner.offset, "a frame that is cut short")


def head(data: bytes, direction: Direction) -> Frame | None:
    """Return the frame at the start of `data`, None if its control line is incomplete."""
    scanner = Scanner(direction, _LINES, line_limit=1 << 20, hold=0, buffer_limit=0)
    scanner.feed(data)
    segment = scanner.next()
    return segment if isinstance(segment, Frame) else None
