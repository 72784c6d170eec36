"""The target on the wire: any bytes, cut anywhere, to three readers that must agree.

The compiled scanner and the pure one give the same segments, and the same counters and tables.  The native
plane, between two sockets, passes on what the pure scanner covers, and lets the same wanted frames be seen.

The input: its first byte chooses the direction and what is wanted, the second the number of cuts, then two
bytes for the place of each cut, then the stream.
"""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, Final

from natsproxy.net import _plane  # type: ignore[attr-defined, unused-ignore]
from natsproxy.rules.engine import _decisions  # type: ignore[attr-defined, unused-ignore]
from natsproxy.wire import _interest_py, _scanner_py
from natsproxy.wire.frames import Fault, Frame, Malformed, Need, Run, Segment
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, MESSAGE_OPS, Direction, Op, op_mask
from natsproxy.wire.scanner import Interest, Scanner

_MESSAGES: Final = op_mask(*MESSAGE_OPS)
WANTS: Final[tuple[tuple[Clause, ...], ...]] = (
    (),
    (Clause(_MESSAGES, Need.LINE, (b"a.*", b"b.>", b"*.c")),),
    (Clause(_MESSAGES, Need.PAYLOAD, (b">",), (b"a", b"FOO.>")),),
    (Clause(op_mask(Op.PING, Op.SUB, Op.OK)), Clause(_MESSAGES, Need.HEADERS, (b"FOO",))),
    (Clause(ALL_OPS, Need.PAYLOAD),),
)
_MOST_CUTS: Final = 8
KNOWN: Final = (b"PUB FOO", b"HPUB FOO", b"MSG FOO 1", b"HMSG FOO 1", b"PUB a.b", b"MSG a.b 1")
"""Beginnings of control lines on which the plane knows the decision: their frames pass."""


def unpack(data: bytes) -> tuple[Direction, tuple[Clause, ...], bool, list[bytes]]:
    """Return the direction, the clauses, whether sids and subjects are watched, and the pieces."""
    choice, cuts, stream = data[0], data[1] % (_MOST_CUTS + 1), data[2:]
    places = sorted(int.from_bytes(stream[2 * n : 2 * n + 2], "big") for n in range(cuts))
    stream = stream[2 * cuts :]
    if stream:
        places = sorted(place % len(stream) for place in places)
    ends = [*places, len(stream)]
    pieces = [stream[start:end] for start, end in zip([0, *places], ends, strict=True)]
    clauses = WANTS[(choice >> 2) % len(WANTS)]
    return Direction(choice & 1), clauses, bool(choice & 2), [piece for piece in pieces if piece]


def scanner(
    kind: Any, interest: Any, direction: Direction, clauses: tuple[Clause, ...], watched: bool
) -> Any:
    """Return a scanner that has small limits, and tables with something in them."""
    made = kind(direction, interest(clauses), line_limit=128, hold=64, buffer_limit=256)
    made.awaited = made.Table()
    if watched and direction:
        made.watch_sids[b"9"] = Need.LINE
        made.tallies[b"1"] = made.tallies[b"9"] = 0
    if watched:
        made.watch_subjects[b"_INBOX.a"] = Need.PAYLOAD
        made.awaited[b"FOO"] = 0
    return made


def rows(segments: list[Segment]) -> list[Any]:
    """Return segments in a form that does not depend on their buffers."""
    found: list[Any] = []
    for one in segments:
        raw = one.buffer[one.start : one.end]
        if isinstance(one, Run):
            found.append(("run", raw, one.frames, one.ops))
        elif isinstance(one, Frame):
            found.append(("frame", raw, one.line_end - one.start, *one[4:]))
        elif isinstance(one, Malformed):
            found.append(("malformed", one.fault, one.offset, one.streaming))
        else:
            found.append((type(one).__name__, raw, getattr(one, "last", None)))
    return found


def state(one: Any) -> tuple[Any, ...]:
    """Return what a scanner has counted."""
    tables = (dict(one.tallies.items()), list(one.awaited))
    return one.ordinal, one.offset, list(one.counts), one.odd, one.mid_frame, one.held, tables


def scan(one: Any, data: bytes) -> list[Segment]:
    """Feed a piece; return the segments."""
    one.feed(data)
    found: list[Segment] = []
    while (segment := one.next()) is not None:
        found.append(segment)
    return found


class Ride:
    """A connection on the native plane, with a compiled scanner for what the plane does not pass itself.

    seen: the control lines of the frames that somebody wants.  bad: what cannot be framed.
    """

    def __init__(self, plane: Any, direction: Direction, one: Any) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        self.sockets = [sock for pair in pairs for sock in pair]
        for sock in self.sockets:
            sock.setblocking(False)
        self.source, self.target = pairs[direction][1], pairs[1 - direction][1]
        self.one, self.direction, self.plane = one, direction, plane
        self.seen: list[bytes] = []
        self.bad: Malformed | None = None
        self.failure: BaseException | None = None
        self.decisions = _decisions.Decisions((b"_INBOX.",), True)
        for key in KNOWN:
            self.decisions.put_pass(key, b"no")
        self.connection = plane.adopt(self, 1, pairs[0][0], pairs[1][0], _plane.NativeLeg)
        self.settle()

    def catch_up(self) -> None:
        """Count what went by, as `session/bypass.py` does."""
        taken = self.connection.take(self.direction)
        if taken is not None:
            frames, _, size, ops, odd, opened, *_ = taken
            self.one.skip(frames, size, ops, odd)
            if opened is not None:
                self.one.skip_into(opened[4])

    def settle(self) -> None:
        pipe = SimpleNamespace(full=False, pending=False, out_next=0, scanner=self.one)
        self.connection.settle_flow(self.direction, self.one.idle, pipe, False, self.decisions)

    def received(self, direction: Direction, data: bytes) -> None:
        self.catch_up()
        parts: list[bytes] = []
        for segment in scan(self.one, data):
            if isinstance(segment, Malformed):
                self.bad = segment
                break
            parts.append(segment.buffer[segment.start : segment.end])
            if isinstance(segment, Frame) and wanted(self.one, segment):
                self.seen.append(segment.line)
        leg = self.connection.client if direction else self.connection.server
        if parts:
            leg.write_all(parts)
        self.settle()

    def ended(self, direction: Direction) -> None:
        self.catch_up()

    def leg_lost(self, leg: Any) -> None:
        raise AssertionError("a leg was lost")

    def flushed(self, leg: Any) -> None:
        raise AssertionError("nobody waits")

    def failed(self, error: BaseException) -> None:
        self.failure = error

    def run(self, data: bytes) -> bytes:
        """Send a piece; return what arrives."""
        self.source.sendall(data)
        while self.plane.step(1 << 60, 0, -1):
            pass
        if self.failure is not None:
            raise self.failure
        try:
            return self.target.recv(1 << 20)
        except BlockingIOError:
            return b""

    def leave(self) -> None:
        self.catch_up()
        self.connection.remove()
        for sock in self.sockets:
            sock.close()


def wanted(one: Any, frame: Frame) -> bool:
    """Return whether somebody wants a frame; others are told of when they are not whole."""
    watched = one.watch_subjects.get(frame.subject, 0)
    if one.direction:
        watched = max(watched, one.watch_sids.get(frame.sid, 0))
    return bool(one.interest.need(frame.op, frame.subject) or (watched and frame.op in MESSAGE_OPS))


def unknown(lines: list[bytes]) -> list[bytes]:
    """Return the control lines of the frames on which the plane knows no decision."""
    return [line for line in lines if not line.startswith(KNOWN)]


def same_segments(
    direction: Direction, clauses: tuple[Clause, ...], watched: bool, pieces: list[bytes]
) -> None:
    """Compare the scanners."""
    compiled = scanner(Scanner, Interest, direction, clauses, watched)
    pure = scanner(_scanner_py.Scanner, _interest_py.Interest, direction, clauses, watched)
    for piece in pieces:
        one, other = rows(scan(compiled, piece)), rows(scan(pure, piece))
        assert one == other, (one, other)
        assert state(compiled) == state(pure), (state(compiled), state(pure))


def same_passage(
    plane: Any, direction: Direction, clauses: tuple[Clause, ...], watched: bool, pieces: list[bytes]
) -> None:
    """Compare what the plane passes with what the pure scanner covers."""
    pure = scanner(_scanner_py.Scanner, _interest_py.Interest, direction, clauses, watched)
    ride = Ride(plane, direction, scanner(Scanner, Interest, direction, clauses, watched))
    covered, arrived, seen = bytearray(), bytearray(), []
    between = 0  # bytes up to the last place that is known to be between two frames
    bad: Malformed | None = None
    try:
        for piece in pieces:
            for segment in scan(pure, piece):
                if isinstance(segment, Malformed):
                    bad = segment
                    break
                covered += segment.buffer[segment.start : segment.end]
                if isinstance(segment, Frame) and wanted(pure, segment):
                    seen.append(segment.line)
            arrived += ride.run(piece)
            if pure.idle:
                between = len(covered)
        ride.catch_up()
    finally:
        ride.leave()
    stream = b"".join(pieces)
    # A frame on which the plane knows a decision may wait for its end.
    waits = not pure.idle and any(known in covered[between:] for known in KNOWN)
    least = covered[:between] if waits else covered
    assert arrived[: len(least)] == least, (arrived, least)
    assert stream.startswith(arrived), (arrived, stream)
    looked_at, wanted_lines = unknown(ride.seen), unknown(seen)
    if ride.bad is not None and ride.bad.streaming and not (bad is not None and bad.streaming):
        # Of a frame whose end is wrong, the headers may be looked at before the end has come.
        looked_at = looked_at[: len(wanted_lines)]
    assert looked_at == wanted_lines, (ride.seen, seen)
    if ride.bad is not None and (bad is None or ride.bad.streaming):
        # The end of a frame that went on as it came is wrong at its first byte; a line that was kept in
        # pieces is looked at once it is whole.
        assert bad.fault == ride.bad.fault if bad is not None else not pure.idle
    elif bad is not None:
        assert ride.bad is not None
        # A line that is kept in pieces may be too long before something else in it is seen.
        late = Fault.LINE_TOO_LONG in (bad.fault, ride.bad.fault)
        assert late or (bad.fault, bad.offset) == (ride.bad.fault, ride.bad.offset), (bad, ride.bad)
    elif pure.idle:
        # What ends in a frame may have been passed on, and counted, as it came.
        assert arrived == covered
        assert state(ride.one) == state(pure), (state(ride.one), state(pure))


def new_plane() -> Any:
    """Return a native plane for many inputs."""
    plane = _plane.Plane(0, 1 << 20, 1 << 20)
    plane.recorded = lambda: None
    return plane


def one_input(plane: Any, data: bytes) -> None:
    """Try one input."""
    if len(data) > 2:
        direction, clauses, watched, pieces = unpack(data)
        same_segments(direction, clauses, watched, pieces)
        same_passage(plane, direction, clauses, watched, pieces)
