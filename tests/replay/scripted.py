"""Captures written by hand: a conversation as lines, without a proxy and without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.replay.conversation.steps import Began, Ended, Event, Step
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.parse import frames

MS = 1_000_000
Line = tuple[int, str, bytes]
"""(connection, ">" from the client or "<" from the server or "open" or "closed", bytes or cause)."""

INFO = b'INFO {"server_id":"S","version":"2.15.1","proto":1,"headers":true,"max_payload":1048576} \r\n'


def named(number: int) -> ConnectionId:
    """Return a connection of the captures that are written here."""
    return ConnectionId(b"r" * 16, 1, number)


def connect(name: str) -> bytes:
    return b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"name":"%b"}\r\n' % name.encode()


def hello(conn: int, name: str) -> list[Line]:
    """A connection up to its first PONG."""
    return [
        (conn, "open", b""),
        (conn, "<", INFO),
        (conn, ">", connect(name) + b"PING\r\n"),
        (conn, "<", b"PONG\r\n"),
    ]


def events(lines: list[Line], step: int = MS) -> Iterator[Event]:
    """Return the events of a conversation, one line every `step` ns."""
    seq = 0
    for at, (conn, kind, data) in enumerate(lines):
        if kind == "open":
            yield Began(named(conn), at * step)
        elif kind == "closed":
            yield Ended(named(conn), at * step, data.decode())
        else:
            direction = C2S if kind == ">" else S2C
            for frame in frames(data, direction):
                yield Step(seq, named(conn), at * step, direction, frame)
                seq += 1


def write(
    path: Path, lines: list[Line], step: int = MS, *, whole: bool = True, cassette: object = None
) -> Path:
    """Write a conversation as a capture, as it is where it does not consist of whole frames.

    cassette: the options that the capture keeps.
    """
    settings = {} if cassette is None else {"cassette": cassette}
    writer = CaptureWriter(path, SegmentInfo(b"r" * 16, b"b" * 16, 0, 0, settings=settings))
    builder = BlockBuilder()
    builder.begin(0, 0)
    ordinals: dict[tuple[int, Direction], int] = {}
    for at, (conn, kind, data) in enumerate(lines):
        builder.add(_item(conn, kind, data, at * step, ordinals, whole))
    writer.open_segment()
    writer.write(builder.seal())
    writer.close()
    return path


def write_segments(folder: Path, parts: list[list[Line]], step: int = MS) -> list[Path]:
    """Write a conversation in segments, as a recorder does that begins a new one now and then."""
    writer = CaptureWriter(folder, SegmentInfo(b"r" * 16, b"b" * 16, 0, 0))
    files, at = [], 0
    ordinals: dict[tuple[int, Direction], int] = {}
    for lines in parts:
        files.append(writer.open_segment())
        builder = BlockBuilder()
        builder.begin(0, 0)
        for conn, kind, data in lines:
            builder.add(_item(conn, kind, data, at * step, ordinals, True))
            at += 1
        writer.write(builder.seal())
    writer.close()
    return files


def _item(
    conn: int, kind: str, data: bytes, t: int, ordinals: dict[tuple[int, Direction], int], whole: bool
) -> Item:
    if kind == "open":
        return OpenRecord(conn, t, {})
    if kind == "closed":
        return CloseRecord(conn, t, data.decode(), {})
    direction = C2S if kind == ">" else S2C
    found = list(frames(data, direction)) if whole else []
    first = ordinals.get((conn, direction), 0)
    ordinals[conn, direction] = first + len(found)
    mask = 0
    for frame in found:
        mask |= frame.op.bit
    return Frames(conn, direction, data, len(found), mask, first, t, first, t)
