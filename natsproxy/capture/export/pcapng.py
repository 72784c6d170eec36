"""Captures as pcapng, which Wireshark and its kin read: one leg, one packet per frame.

A packet tool knows one wire, so one leg is written: the client's (as clients saw it) or the server's.  A
frame is there if that leg saw it, at the time at which it did; what the proxy did with it is the packet's
comment.  TCP around it is made up (`tcp.py`).

A capture has its records in the order in which they were decided, not in that of either leg: a delayed frame
is recorded when it leaves.  So steps wait in a heap, bounded in number and bytes, and leave it by (time,
arrivals before departures, ordinal); that is the order of the bytes, unless a frame was held so long that
more than the heap takes went by.  The clock of this order is the monotonic one; packets are stamped with the
wall clock.

The file format is draft-ietf-opsawg-pcapng: section header, one interface (Ethernet, nanoseconds), packets.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from typing import IO, Final, Literal, NamedTuple

from natsproxy import __version__
from natsproxy.capture.export.tcp import Conversation, Packet, endpoints
from natsproxy.capture.format.records import Close, Flags, Frames, Gap, Item, Opaque, Open, Preamble
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of, remarks
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef
from natsproxy.wire.ops import ALL_OPS, C2S, S2C, Direction

Leg = Literal["client", "server"]
HELD: Final = 1 << 16
HELD_BYTES: Final = 32 << 20
"""The most steps that wait for their turn, and the most bytes of their data."""
_OPEN, _ARRIVAL, _DEPARTURE, _CLOSE = range(4)
_LAST = 1 << 64  # behind all ordinals
_COMMENT_MAX = 1_000  # characters
_RESETS: Final[dict[str, Direction]] = {"client-lost": C2S, "server-lost": S2C, "killed": S2C}
"""Connections that ended by RST, by cause, and whose it was; all others end by FIN."""


class Step(NamedTuple):
    """Something of one connection, in the order in which the leg saw it; t: monotonic ns, wall: Unix ns."""

    t: int
    rank: int
    ordinal: int
    number: int
    wall: int
    conn: int
    direction: Direction
    data: bytes
    length: int
    comment: str


def pcapng(reader: CaptureReader, out: IO[bytes], query: Query, leg: Leg = "client") -> int:
    """Write the packets of one leg; return how many frames are in them."""
    out.write(_section() + _interface(f"{leg} leg"))
    exporter = _Exporter(query, leg)
    for ref, item in reader.items():
        for step in exporter.take(ref, item):
            out.writelines(exporter.blocks(step))
    for step in exporter.rest():
        out.writelines(exporter.blocks(step))
    return exporter.frames


class _Exporter:
    """The connections of one recorder at a time, and the steps that wait."""

    def __init__(self, query: Query, leg: Leg) -> None:
        self._query = query
        self._arrivals = C2S if leg == "client" else S2C
        self._choosy = query.ops != ALL_OPS or bool(query.subjects)
        self._heap: list[Step] = []
        self._bytes = self._number = self.frames = 0
        self._recorder = b""
        self._names: dict[int, tuple[str, str]] = {}
        self._open: dict[int, Conversation] = {}
        self._said = ""

    # -- from the capture to steps

    def take(self, ref: BlockRef, item: Item) -> Iterator[Step]:
        """Take an item; yield the steps that are due."""
        if ref.segment.recorder != self._recorder:
            yield from self.rest()
            self._recorder = ref.segment.recorder
        if isinstance(item, Frames):
            if self._query.wants_record(item):
                for one in frames_of(ref, item):
                    if self._query.wants(one):
                        self._frame(one, item)
        elif self._wants(ref, item):
            self._other(ref, item)
        while len(self._heap) > HELD or self._bytes > HELD_BYTES:
            yield self._next()

    def rest(self) -> Iterator[Step]:
        """Yield all steps; no connection goes on after them."""
        while self._heap:
            yield self._next()
        self._names.clear()
        self._open.clear()

    def _next(self) -> Step:
        step = heapq.heappop(self._heap)
        self._bytes -= len(step.data)
        return step

    def _wants(self, ref: BlockRef, item: Item) -> bool:
        query, conn, wall = self._query, getattr(item, "conn", None), ref.wall(item.t)
        if query.conns and conn is not None and conn not in query.conns:
            return False
        late = query.end is not None and wall > query.end
        return isinstance(item, Open | Preamble) or not (late or (query.start or wall) > wall)

    def _frame(self, one: CapturedFrame, item: Frames) -> None:
        came = one.direction == self._arrivals
        ordinal = one.in_ordinal if came else one.out_ordinal
        if ordinal is None:
            return
        late = 0 if came else one.delay
        length = _true_length(one, item)
        rank = _ARRIVAL if came else _DEPARTURE
        self._push(
            one.t + late,
            rank,
            ordinal,
            one.wall + late,
            one.conn,
            one.direction,
            one.data,
            length,
            ", ".join(remarks(one)),
        )

    def _other(self, ref: BlockRef, item: Item) -> None:
        wall = ref.wall(item.t)
        if isinstance(item, Open | Preamble):
            if item.conn in self._names:
                return
            info = item.info if isinstance(item, Open) else item.info.get("open")
            info = info if isinstance(info, dict) else {}
            self._names[item.conn] = str(info.get("client", "")), str(info.get("upstream", ""))
            in_time = (self._query.start or wall) <= wall <= (self._query.end or wall)
            if in_time and not self._choosy:
                self._push(item.t, _OPEN, 0, wall, item.conn)
        elif isinstance(item, Close):
            text = ": ".join(filter(None, (item.cause, str(item.info.get("detail") or ""))))
            first = _RESETS.get(item.cause, C2S if item.cause == "client-closed" else S2C)
            self._push(item.t, _CLOSE, 0, wall, item.conn, first, length=item.cause in _RESETS, comment=text)
        elif (
            isinstance(item, Opaque) and not self._choosy and self._query.direction in (None, item.direction)
        ):
            rank = _ARRIVAL if item.direction == self._arrivals else _DEPARTURE
            self._push(item.t, rank, _LAST, wall, item.conn, item.direction, length=item.length)
        elif isinstance(item, Gap):
            lost = f"{item.info.get('frames')} frames were not recorded: {item.info.get('reason')}"
            self._said = "; ".join(filter(None, (self._said, lost)))[-_COMMENT_MAX:]

    def _push(
        self,
        t: int,
        rank: int,
        ordinal: int,
        wall: int,
        conn: int,
        direction: Direction = C2S,
        data: bytes = b"",
        length: int = 0,
        comment: str = "",
    ) -> None:
        if self._said:
            comment, self._said = "; ".join(filter(None, (comment, self._said))), ""
        self._number += 1
        self._bytes += len(data)
        step = Step(t, rank, ordinal, self._number, wall, conn, direction, data, length, comment)
        heapq.heappush(self._heap, step)

    # -- from steps to blocks

    def blocks(self, step: Step) -> Iterator[bytes]:
        """Yield the packet blocks of a step; its comment is on the first."""
        if step.rank == _CLOSE:
            self._names.pop(step.conn, None)
            ended = self._open.pop(step.conn, None)
            if ended is not None:
                yield from _packets(ended.close(step.direction, reset=bool(step.length)), step)
            return
        conversation = self._open.get(step.conn)
        if conversation is None:
            client, server = self._names.get(step.conn, ("", ""))
            conversation = Conversation(*endpoints(client, server, step.conn), step.number)
            self._open[step.conn] = conversation
            text = f"connection {step.conn}: {client or 'unknown'} to {server or 'unknown'}"
            yield from _packets(conversation.open(), step._replace(comment=text))
        if step.rank != _OPEN:
            self.frames += step.ordinal != _LAST
            yield from _packets(conversation.send(step.direction, step.data, step.length), step)


def _true_length(one: CapturedFrame, item: Frames) -> int:
    """Return how long a frame was on the wire, where the record has less of it."""
    size = len(one.data)
    if not one.flags:
        return size
    if one.flags & Flags.TRUNCATED:
        told = (item.extra or {}).get("size")
        return max(size, told) if type(told) is int else size
    begun = one.head if one.flags & Flags.PAYLOAD else None
    return size if begun is None else max(size, begun.line_end - begun.start + begun.size + 2)


# -- the file format


def _packets(packets: Iterator[Packet], step: Step) -> Iterator[bytes]:
    comment = step.comment
    for packet in packets:
        stamp = min(max(step.wall, 0), (1 << 64) - 1)
        head = struct.pack("<IIIII", 0, stamp >> 32, stamp & 0xFFFFFFFF, len(packet.data), packet.length)
        yield _block(6, head + _padded(packet.data) + _options((1, comment[:_COMMENT_MAX].encode())))
        comment = ""


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


def _section() -> bytes:
    head = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    return _block(0x0A0D0D0A, head + _options((4, f"natsproxy {__version__}".encode())))


def _interface(name: str) -> bytes:
    return _block(1, struct.pack("<HHI", 1, 0, 0) + _options((2, name.encode()), (9, b"\x09")))


def _options(*pairs: tuple[int, bytes]) -> bytes:
    """Return the options that are not empty, and their end; nothing for none."""
    raw = b"".join(struct.pack("<HH", code, len(text)) + _padded(text) for code, text in pairs if text)
    return raw + bytes(4) if raw else b""


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)
