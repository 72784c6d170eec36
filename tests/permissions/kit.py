"""Recordings made by hand, and what they need."""

from __future__ import annotations

from pathlib import Path

from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.permissions.needs import ClientNeeds, needs_of
from natsproxy.permissions.uses import By, Verb
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, WALL, Scribe

Sent = tuple[str, bytes]
"""Who sent a frame (`>` client, `<` server), and the frame."""
NUID = b"Pnt31j6R41UDUrBs0hOsDx"
UUID = b"92d29374-3a03-43aa-8d5e-d6bba9e63cb9"


def connect(name: str = "", user: str = "", lang: str = "python3") -> Sent:
    return ">", f'CONNECT {{"name":"{name}","user":"{user}","lang":"{lang}"}}\r\n'.encode()


def pub(subject: bytes, reply: bytes = b"", body: bytes = b"") -> Sent:
    return ">", b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body)


def sub(subject: bytes, queue: bytes = b"") -> Sent:
    return ">", b"SUB %b %b 1\r\n" % (subject, queue)


def msg(subject: bytes, reply: bytes = b"") -> Sent:
    return "<", b"MSG %b 1 %b 0\r\n\r\n" % (subject, reply)


def items(frames: list[tuple[int, Sent]]) -> list[Item]:
    """Return records of frames by connection, 10 ms apart."""
    scribe = Scribe()
    for at, (conn, (sender, raw)) in enumerate(frames):
        scribe.frame(at * 10_000_000, conn, C2S if sender == ">" else S2C, raw)
    return scribe.items


def segments(folder: Path, found: list[Item], size: int) -> list[Path]:
    """Write items as the segments of one run, `size` items in each."""
    paths = []
    info = SegmentInfo(b"r" * 16, bytes(16), WALL, MONO)
    writer = CaptureWriter(folder, info)
    for start in range(0, max(1, len(found)), size):
        builder = BlockBuilder()
        builder.begin(MONO, WALL)
        for item in found[start : start + size]:
            assert isinstance(item, Frames)
            builder.add(item)
        paths.append(writer.open_segment(SegmentInfo(b"r" * 16, bytes(16), WALL + start, MONO)))
        writer.write(builder.seal())
    writer.close()
    return sorted(folder.iterdir())


def need(folder: Path, *frames: Sent, distinct: int = 3, words: int = 20) -> ClientNeeds:
    """Return what one client needs that sent and got these frames."""
    found = items([(1, frame) for frame in (connect("it"), *frames)])
    (one,) = needs_of(
        segments(folder / "capture", found, len(found)), By.NAME, distinct=distinct, words=words
    )
    return one


def published(one: ClientNeeds) -> list[str]:
    return [str(place) for place in one.of(Verb.PUBLISH)]


def subscribed(one: ClientNeeds) -> list[str]:
    return [str(place) for place in one.of(Verb.SUBSCRIBE)]
