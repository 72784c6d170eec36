"""Large captures in little time: a publisher and a subscriber that repeat one exchange of messages.

A round is twenty frames: seven messages published and delivered, one request with its answer, one JetStream
delivery with its ack.  Rounds arrive in reads, as they do from sockets: one record for each direction of each
connection.
"""

from __future__ import annotations

import os
from pathlib import Path

from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from tests.kit.captures import MONO, WALL

ROUND = 20
_READ = 50  # rounds
_STEP = 1_000_000  # ns from read to read
_SUBJECTS = [b"orders.eu.%d" % n for n in range(1_000)]
_RUNS: list[tuple[int, Direction, int, int]] = [
    (1, C2S, 8, op_mask(Op.PUB)),
    (2, S2C, 9, op_mask(Op.MSG)),
    (2, C2S, 2, op_mask(Op.PUB)),
    (1, S2C, 1, op_mask(Op.MSG)),
]


def traffic(path: Path, frames: int, *, size: int = 16) -> Path:
    """Write a capture of at least so many frames with payloads of `size` bytes; return its path."""
    writer = CaptureWriter(path, SegmentInfo(os.urandom(16), bytes(16), WALL, MONO, seed=1))
    writer.open_segment()
    builder = BlockBuilder()

    def add(item: Item) -> None:
        if not builder.begun:
            builder.begin(item.t, WALL + item.t - MONO)
        builder.add(item)
        if builder.size >= BLOCK_SIZE:
            writer.write(builder.seal())

    for conn in (1, 2):
        add(OpenRecord(conn, MONO, {"client": f"127.0.0.1:{50_000 + conn}", "upstream": "127.0.0.1:4222"}))
    reads = -(-frames // (ROUND * _READ))
    for read in range(reads):
        t = MONO + read * _STEP
        for nth, (data, (conn, direction, count, ops)) in enumerate(
            zip(_read(read, size), _RUNS, strict=True)
        ):
            first, at = read * _READ * count, t + nth * _STEP // 8
            add(Frames(conn, direction, data, _READ * count, ops, first, at, first, at))
    for conn in (1, 2):
        add(CloseRecord(conn, MONO + reads * _STEP, "client-closed", {}))
    writer.write(builder.seal())
    writer.close()
    return path


def minutes(folder: Path, count: int, frames: int) -> Path:
    """Write captures that a recorder rotated by the minute, of so many frames each; return their folder."""
    writer = CaptureWriter(folder, SegmentInfo(os.urandom(16), bytes(16), WALL, MONO))
    minute = 60 * 1_000_000_000
    for number in range(count):
        writer.open_segment()
        builder, t = BlockBuilder(), MONO + number * minute
        builder.begin(t, WALL + number * minute)
        for first in range(number * frames, (number + 1) * frames):
            raw = b"PUB telemetry.device-%d 5\r\nhello\r\n" % (first % 50)
            builder.add(Frames(1 + first % 8, C2S, raw, 1, op_mask(Op.PUB), first, t, first, t))
        writer.write(builder.seal())
    writer.close()
    return folder


def _read(read: int, size: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the bytes of a read: what 1 published, 2 got, 2 published, 1 got."""
    body = b"%d\r\n%s\r\n" % (size, b"x" * size)
    published, delivered, answered, received = [], [], [], []
    for number in range(read * _READ, (read + 1) * _READ):
        for n in range(7 * number, 7 * number + 7):
            subject = _SUBJECTS[n % 1_000]
            published.append(b"PUB %s %s" % (subject, body))
            delivered.append(b"MSG %s 1 %s" % (subject, body))
        inbox = b"_INBOX.Zd7xPq2LrT0bY9mKcV4sWe.%d" % number
        published.append(b"PUB svc.price %s %s" % (inbox, body))
        delivered.append(b"MSG svc.price 2 %s %s" % (inbox, body))
        answered.append(b"PUB %s %s" % (inbox, body))
        received.append(b"MSG %s 9 %s" % (inbox, body))
        ack = b"$JS.ACK.ORDERS.worker.1.%d.%d.1767225600000000000.0" % (number + 1, number + 1)
        delivered.append(b"MSG orders.new 3 %s %s" % (ack, body))
        answered.append(b"PUB %s 4\r\n+ACK\r\n" % ack)
    return b"".join(published), b"".join(delivered), b"".join(answered), b"".join(received)
