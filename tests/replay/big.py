"""Captures of any size, written without a server: publishers, a subscriber to all, a service and a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from tests.replay.scripted import INFO, connect

BURST = 50
"""Frames of one read."""
_OPS = {(C2S, b"PU"): Op.PUB, (S2C, b"MS"): Op.MSG}


def big(
    path: Path, frames: int, *, payload: int = 16, rate: int = 20_000, listen: bool = True, asks: int = 1
) -> Path:
    """Write a capture of about `frames` frames in both directions at `rate` frames a second.

    Connection 1 subscribes to everything (`listen`), 2 to 4 publish in bursts, 5 answers, 6 asks once in
    `asks` bursts.
    """
    writer = CaptureWriter(path, SegmentInfo(b"r" * 16, b"b" * 16, 0, 0))
    builder = BlockBuilder()
    builder.begin(0, 0)
    writer.open_segment()
    for item in _items(frames, payload, 10**9 // rate, listen, asks):
        if builder.size >= BLOCK_SIZE:
            writer.write(builder.seal())
            builder.begin(item.t, item.t)
        builder.add(item)
    writer.write(builder.seal())
    writer.close()
    return path


class _Clerk:
    """Numbers the frames of each connection and direction."""

    def __init__(self, step: int) -> None:
        self.t = 0
        self.step = step
        self.frames = 0
        self._next: dict[tuple[int, Direction], int] = {}

    def item(self, conn: int, direction: Direction, data: bytes, count: int, ops: int) -> Frames:
        first = self._next.get((conn, direction), 0)
        self._next[conn, direction] = first + count
        self.frames += count
        self.t += count * self.step
        return Frames(conn, direction, data, count, ops, first, self.t, first, self.t)


def _items(frames: int, payload: int, step: int, listen: bool, asks: int) -> Iterator[Item]:
    clerk = _Clerk(step)
    for conn in range(1, 7):
        yield OpenRecord(conn, clerk.t, {})
        yield clerk.item(conn, S2C, INFO, 1, Op.INFO.bit)
        yield clerk.item(conn, C2S, connect(f"c{conn}") + b"PING\r\n", 2, Op.CONNECT.bit | Op.PING.bit)
        yield clerk.item(conn, S2C, b"PONG\r\n", 1, Op.PONG.bit)
    if listen:
        yield clerk.item(1, C2S, b"SUB data.> 1\r\n", 1, Op.SUB.bit)
    yield clerk.item(5, C2S, b"SUB ask 1\r\n", 1, Op.SUB.bit)
    yield clerk.item(6, C2S, b"SUB _INBOX.%b.* 1\r\n" % _INBOX, 1, Op.SUB.bit)
    n = 0
    while clerk.frames < frames:
        yield from _burst(clerk, 2 + n % 3, n, payload, listen)
        if n % asks == 0:
            yield from _exchange(clerk, n)
        n += 1
    for conn in range(1, 7):
        yield CloseRecord(conn, clerk.t, "client-closed", {})


_INBOX = b"A" * 21 + b"1"


def _burst(clerk: _Clerk, conn: int, n: int, payload: int, listen: bool) -> Iterator[Item]:
    bodies = [b"%0*d" % (payload, n * BURST + k) for k in range(BURST)]
    sent = b"".join(b"PUB data.%d %d\r\n%b\r\n" % (conn, payload, body) for body in bodies)
    yield clerk.item(conn, C2S, sent, BURST, Op.PUB.bit)
    if listen:
        delivered = b"".join(b"MSG data.%d 1 %d\r\n%b\r\n" % (conn, payload, body) for body in bodies)
        yield clerk.item(1, S2C, delivered, BURST, Op.MSG.bit)


def _exchange(clerk: _Clerk, n: int) -> Iterator[Item]:
    reply = b"_INBOX.%b.%d" % (_INBOX, n)
    yield clerk.item(6, C2S, b"PUB ask %b 4\r\nwhat\r\n" % reply, 1, Op.PUB.bit)
    yield clerk.item(5, S2C, b"MSG ask 1 %b 4\r\nwhat\r\n" % reply, 1, Op.MSG.bit)
    yield clerk.item(5, C2S, b"PUB %b 4\r\nthis\r\n" % reply, 1, Op.PUB.bit)
    yield clerk.item(6, S2C, b"MSG %b 1 4\r\nthis\r\n" % reply, 1, Op.MSG.bit)
