"""A connection of the fuzzer on the native plane."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from natsproxy.net import _plane  # type: ignore[attr-defined, unused-ignore]
from natsproxy.rules.engine import _decisions  # type: ignore[attr-defined, unused-ignore]
from natsproxy.wire.frames import Body, Frame, Malformed, Run, Segment
from natsproxy.wire.ops import Direction
from natsproxy.wire.scanner import Interest, Scanner
from tests.fuzz.choice import Choice, ends_frame, scan, scanner, wanted
from tests.fuzz.recording import Recording

KNOWN: Final = (b"PUB FOO", b"HPUB FOO", b"MSG FOO 1", b"HMSG FOO 1", b"PUB a.b", b"MSG a.b 1")
"""Beginnings of control lines on which the plane knows the decision: their frames pass."""


class OpenFrame(NamedTuple):
    """A frame that comes in pieces: its op, its ordinal, and what has come."""

    op: int
    ordinal: int
    data: bytes


class Ride:
    """A connection on the native plane, with a compiled scanner for what the plane does not pass itself.

    seen: the control lines of the frames that somebody wants.  bad: what cannot be framed.  recording: takes
    the records, or None.
    """

    def __init__(self, plane: Any, choice: Choice) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        self.sockets = [sock for pair in pairs for sock in pair]
        for sock in self.sockets:
            sock.setblocking(False)
        self.direction, self.plane = choice.direction, plane
        self.source, self.target = pairs[self.direction][1], pairs[1 - self.direction][1]
        self.one = scanner(Scanner, Interest, choice)
        self.recording = Recording(plane) if choice.recording else None
        self.open = OpenFrame(0, 0, b"")
        self.seen: list[bytes] = []
        self.bad: Malformed | None = None
        self.failure: BaseException | None = None
        self.decisions = _decisions.Decisions((b"_INBOX.",), True)
        for key in KNOWN:
            self.decisions.put(key, b"no", [])
        self.connection = plane.adopt(self, 1, pairs[0][0], pairs[1][0], _plane.NativeLeg)
        self.update_flow()

    def catch_up(self) -> None:
        """Count what went by, as `DirectionPipe.catch_up` does."""
        taken = self.connection.take(self.direction)
        if taken is not None:
            frames, _, size, ops, opened, *_ = taken
            self.one.skip(frames, size, ops)
            if opened is not None:
                op, ordinal, _, _, missing, data = opened
                self.one.skip_into(missing)
                self.open = OpenFrame(op, ordinal, data)

    def update_flow(self) -> None:
        out = self.one.ordinal  # nothing is dropped, nothing is injected
        pipe = SimpleNamespace(
            full=False, swallowing=False, pending=False, whole=0, out_next=out, scanner=self.one
        )
        recording = self.recording is not None
        self.connection.update_flow(self.direction, self.one.idle, pipe, recording, self.decisions)

    def received(self, direction: Direction, data: bytes) -> None:
        self.catch_up()
        parts: list[bytes] = []
        ordinal = self.one.ordinal
        for segment in scan(self.one, data):
            if isinstance(segment, Malformed):
                self.bad = segment
                break
            parts.append(segment.buffer[segment.start : segment.end])
            if isinstance(segment, Frame) and wanted(self.one, segment):
                self.seen.append(segment.line)
            if self.recording is not None:
                self.record(self.recording, segment, ordinal)
            ordinal += segment.frames if isinstance(segment, Run) else isinstance(segment, Frame)
        leg = self.connection.client if direction else self.connection.server
        if parts:
            leg.write_all(parts)
        self.update_flow()

    def record(self, to: Recording, segment: Segment, ordinal: int) -> None:
        """Record whole frames, as a session does; one in pieces once its end has come."""
        raw = segment.buffer[segment.start : segment.end]
        if isinstance(segment, Run):
            to.add(self.direction, raw, segment.frames, segment.ops, ordinal)
        elif isinstance(segment, Frame):
            self.open = OpenFrame(segment.op, ordinal, raw)
        elif isinstance(segment, Body):
            self.open = self.open._replace(data=self.open.data + raw)
        if ends_frame(segment) and not isinstance(segment, Run):
            to.add(self.direction, self.open.data, 1, 1 << self.open.op, self.open.ordinal)

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
        if self.recording is not None:
            self.recording.leave()
