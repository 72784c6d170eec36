"""Captures as pcapng, the format of Wireshark: one leg, one packet per frame.

Packet tools expect one wire, so one leg is written: the client's (as clients saw it) or the server's.  A
frame is written if that leg saw it, with the time at which that leg saw it; its comment says how the proxy
treated it.  The TCP connection around the frames is synthetic (`tcp.py`).

Order.  A capture has records in the order in which the proxy decided on them: a delayed frame is recorded
when it leaves.  A leg has another order, so each frame becomes a `LegEvent`, and events wait in a heap that
is sorted by (time, arrivals before departures, ordinal).  The heap is bounded in number and in bytes; when it
is full, its first event is written.  So the order is right unless more than the heap holds passed while a
frame was delayed.  Packets are stamped with the wall clock.  Events are sorted by the monotonic clock of
their run, plus its offset to the wall clock when the run began, so that events of several runs compare.

The file format is draft-ietf-opsawg-pcapng: a section header, one interface (Ethernet, nanoseconds), then
enhanced packet blocks.  Everything is little-endian and padded to four bytes.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from typing import IO, Final, Literal, NamedTuple

from natsproxy import __version__
from natsproxy.bounded import BoundedDict
from natsproxy.capture.export.tcp import Packet, TcpConnection, TcpEndpoint, endpoints
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    CloseRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of, remarks
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef
from natsproxy.units import SECOND
from natsproxy.wire.ops import ALL_OPS, C2S, S2C, Direction

Leg = Literal["client", "server"]
HELD: Final = 1 << 16
HELD_BYTES: Final = 32 << 20
"""The most events that wait in the heap, and the most bytes of their data."""
_OPEN, _ARRIVAL, _DEPARTURE, _CLOSE = range(4)  # the order of events of one time
_LAST = 1 << 64  # the ordinal of opaque bytes: they follow all frames of their direction
_COMMENT_MAX = 1_000  # characters
# Block types, and codes of options: draft-ietf-opsawg-pcapng, sections 4.1 to 4.3.
_SECTION, _INTERFACE, _ENHANCED_PACKET = 0x0A0D0D0A, 1, 6
_COMMENT, _USER_APPLICATION, _INTERFACE_NAME, _TIME_RESOLUTION = 1, 4, 2, 9
_NANOSECONDS = b"\x09"  # 10**-9
_ETHERNET = 1  # the link type
_BYTE_ORDER = 0x1A2B3C4D  # a reader tells the byte order from it
_RESETS: Final[dict[str, Direction]] = {"client-lost": C2S, "server-lost": S2C, "killed": S2C}
"""The causes of ends by RST, with the direction of that RST; connections of other causes end by FIN."""


class LegEvent(NamedTuple):
    """A frame, the opening or the end of a connection as the leg saw it; its fields sort in that order.

    t: ns of a clock that does not step.  number: the order in the capture, as the last sort key.
    wall: Unix ns.  length: the true length of the data in bytes; for an end, whether it is an RST.
    """

    t: int
    rank: int
    ordinal: int
    number: int
    wall: int
    conn: ConnectionId
    direction: Direction
    data: bytes
    length: int
    comment: str


def pcapng(reader: CaptureReader, out: IO[bytes], query: Query, leg: Leg = "client") -> int:
    """Write the packets of one leg; return the number of frames in them."""
    out.write(_section() + _interface(f"{leg} leg"))
    exporter = _Exporter(query, leg)
    for ref, item in reader.items():
        for event in exporter.take(ref, item):
            out.writelines(exporter.blocks(event))
    for event in exporter.rest():
        out.writelines(exporter.blocks(event))
    return exporter.frames


class _Exporter:
    """Turns items into events, and events into blocks.

    frames: the number of frames written.
    """

    def __init__(self, query: Query, leg: Leg) -> None:
        self._query = query
        self._arrivals = C2S if leg == "client" else S2C
        # A query for some frames leaves out connections without such frames, and opaque bytes.
        self._by_frame = query.ops != ALL_OPS or bool(query.subjects)
        self._heap: list[LegEvent] = []
        self._bytes = self._number = self.frames = 0
        self._clocks: dict[int, int] = {}  # of each run: the wall clock less the monotonic one
        self._addresses: dict[ConnectionId, tuple[str, str]] = {}
        self._open: dict[ConnectionId, TcpConnection] = {}
        self._owners: BoundedDict[tuple[TcpEndpoint, TcpEndpoint], ConnectionId] = BoundedDict()
        self._gaps = ""  # the comment about gaps, for the next event

    # -- capture to events

    def take(self, ref: BlockRef, item: Item) -> Iterator[LegEvent]:
        """Add an item; yield the events that the full heap gives up."""
        clocks = ref.summary.wall0 - ref.summary.mono0
        known = self._clocks.setdefault(ref.segment.run, clocks)
        if abs(clocks - known) > SECOND:  # a clock was set
            yield from self.rest()
            self._clocks[ref.segment.run] = clocks
        if isinstance(item, Frames):
            if self._query.wants_record(ref, item):
                for one in frames_of(ref, item):
                    if self._query.wants(one):
                        self._frame(one, item)
        elif self._wants(ref, item):
            self._other(ref, item)
        while len(self._heap) > HELD or self._bytes > HELD_BYTES:
            yield self._next()

    def rest(self) -> Iterator[LegEvent]:
        """Yield all waiting events."""
        while self._heap:
            yield self._next()

    def _next(self) -> LegEvent:
        event = heapq.heappop(self._heap)
        self._bytes -= len(event.data)
        return event

    def _wants(self, ref: BlockRef, item: Item) -> bool:
        query, wall = self._query, ref.wall(item.t)
        if not query.wants_connection(ref, item):
            return False
        late = query.end is not None and wall > query.end
        # Openings before the time of the query count: later packets need the addresses in them.
        return isinstance(item, OpenRecord | Preamble) or not (late or (query.start or wall) > wall)

    def _frame(self, one: CapturedFrame, item: Frames) -> None:
        arrives = one.direction == self._arrivals
        ordinal = one.in_ordinal if arrives else one.out_ordinal
        if ordinal is None:  # this leg did not see it
            return
        delay = 0 if arrives else one.delay
        length = _true_length(one, item)
        rank = _ARRIVAL if arrives else _DEPARTURE
        self._push(
            one.t + delay + self._clocks[one.conn.run],
            rank,
            ordinal,
            one.wall + delay,
            one.conn,
            one.direction,
            one.data,
            length,
            ", ".join(remarks(one)),
        )

    def _other(self, ref: BlockRef, item: Item) -> None:
        wall, t, conn = ref.wall(item.t), item.t + self._clocks[ref.segment.run], ref.connection(item)
        if isinstance(item, GapRecord):
            lost = f"{item.info.get('frames')} frames were not recorded: {item.info.get('reason')}"
            self._gaps = "; ".join(filter(None, (self._gaps, lost)))[-_COMMENT_MAX:]
        elif conn is None:
            return
        elif isinstance(item, OpenRecord | Preamble):
            if conn in self._addresses:  # a preamble repeats it in each segment
                return
            info = item.info if isinstance(item, OpenRecord) else item.info.get("open")
            info = info if isinstance(info, dict) else {}  # a capture may hold anything
            self._addresses[conn] = str(info.get("client", "")), str(info.get("upstream", ""))
            in_time = (self._query.start or wall) <= wall <= (self._query.end or wall)
            if in_time and not self._by_frame:
                self._push(t, _OPEN, 0, wall, conn)
        elif isinstance(item, CloseRecord):
            text = ": ".join(filter(None, (item.cause, str(item.info.get("detail") or ""))))
            first = _RESETS.get(item.cause, C2S if item.cause == "client-closed" else S2C)
            self._push(t, _CLOSE, 0, wall, conn, first, length=item.cause in _RESETS, comment=text)
        elif (
            isinstance(item, OpaqueRecord)
            and not self._by_frame
            and self._query.direction in (None, item.direction)
        ):
            rank = _ARRIVAL if item.direction == self._arrivals else _DEPARTURE
            self._push(t, rank, _LAST, wall, conn, item.direction, length=item.length)

    def _push(
        self,
        t: int,
        rank: int,
        ordinal: int,
        wall: int,
        conn: ConnectionId,
        direction: Direction = C2S,
        data: bytes = b"",
        length: int = 0,
        comment: str = "",
    ) -> None:
        if self._gaps:
            comment, self._gaps = "; ".join(filter(None, (comment, self._gaps))), ""
        self._number += 1
        self._bytes += len(data)
        event = LegEvent(t, rank, ordinal, self._number, wall, conn, direction, data, length, comment)
        heapq.heappush(self._heap, event)

    # -- events to blocks

    def blocks(self, event: LegEvent) -> Iterator[bytes]:
        """Yield the packet blocks of an event; its comment is on the first."""
        if event.rank == _CLOSE:
            self._addresses.pop(event.conn, None)
            ended = self._open.pop(event.conn, None)
            if ended is not None:
                yield from _packets(ended.close(event.direction, reset=bool(event.length)), event)
            return
        connection = self._open.get(event.conn)
        if connection is None:
            client, server = self._addresses.get(event.conn, ("", ""))
            connection = TcpConnection(*self._ends(event.conn, client, server), event.number)
            self._open[event.conn] = connection
            text = f"connection {event.conn}: {client or 'unknown'} to {server or 'unknown'}"
            yield from _packets(connection.open(), event._replace(comment=text))
        if event.rank != _OPEN:
            self.frames += event.ordinal != _LAST
            yield from _packets(connection.send(event.direction, event.data, event.length), event)

    def _ends(self, conn: ConnectionId, client: str, server: str) -> tuple[TcpEndpoint, TcpEndpoint]:
        """Return the two ends of a connection.

        Connections of another run, on another machine, may have the same addresses at the same time: then the
        client's address is made up.
        """
        number = conn.number + (conn.run - 1 << 17)  # other addresses for the connections of other runs
        ends = endpoints(client, server, number)
        other = self._owners.setdefault(ends, conn)
        if other.run != conn.run and other in self._open:
            return endpoints("", server, number)
        self._owners[ends] = conn
        return ends


def _true_length(one: CapturedFrame, item: Frames) -> int:
    """Return the length of a frame on the wire, of which the record may have less."""
    size = len(one.data)
    if not one.flags:
        return size
    if one.flags & Flags.TRUNCATED:
        recorded = (item.extra or {}).get("size")
        return max(size, recorded) if type(recorded) is int else size
    begun = one.head if one.flags & Flags.PAYLOAD else None
    return size if begun is None else max(size, begun.line_end - begun.start + begun.size + 2)


# -- the file format


def _packets(packets: Iterator[Packet], event: LegEvent) -> Iterator[bytes]:
    comment = event.comment
    # 0: the first (and only) interface; the stamp goes in two halves, high first.
    for packet in packets:
        stamp = min(max(event.wall, 0), (1 << 64) - 1)
        head = struct.pack("<IIIII", 0, stamp >> 32, stamp & 0xFFFFFFFF, len(packet.data), packet.length)
        options = _options((_COMMENT, comment[:_COMMENT_MAX].encode()))
        yield _block(_ENHANCED_PACKET, head + _padded(packet.data) + options)
        comment = ""


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", len(body) + 12)  # at both ends, so that readers can go backwards
    return struct.pack("<I", kind) + length + body + length


def _section() -> bytes:
    head = struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1)  # version 1.0; the section's length is not known
    return _block(_SECTION, head + _options((_USER_APPLICATION, f"natsproxy {__version__}".encode())))


def _interface(name: str) -> bytes:
    head = struct.pack("<HHI", _ETHERNET, 0, 0)  # 0: packets have no greatest length
    options = _options((_INTERFACE_NAME, name.encode()), (_TIME_RESOLUTION, _NANOSECONDS))
    return _block(_INTERFACE, head + options)


def _options(*pairs: tuple[int, bytes]) -> bytes:
    """Return the options that are not empty and the end mark; nothing where all are empty."""
    raw = b"".join(struct.pack("<HH", code, len(text)) + _padded(text) for code, text in pairs if text)
    return raw + bytes(4) if raw else b""


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)
