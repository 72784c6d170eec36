"""Items to text: a capture is read twice, first for the names of its connections, then for its items.

Memory follows the number of connections, and the size of a block.  What goes without saying is left out: a
number that is the next one, a moment that an item shares with the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    Close,
    Firing,
    Flags,
    Frames,
    Gap,
    Item,
    Note,
    Opaque,
    Open,
    Preamble,
)
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef, Segment
from natsproxy.capture.text.frames import dump_frame, dump_raw
from natsproxy.capture.text.names import Names
from natsproxy.capture.text.payload import dump_payload
from natsproxy.capture.text.statements import ARROWS, FIRST_LINE, VERBS, preamble_ordinals, write
from natsproxy.capture.text.survey import Connection, survey
from natsproxy.capture.text.values import dump_members, dump_offset, dump_time, dump_value
from natsproxy.errors import CaptureError
from natsproxy.wire.ops import C2S

_ANY: Final = Query()


def write_text(reader: CaptureReader, out: IO[bytes], query: Query = _ANY) -> int:
    """Write the items that `query` asks for as text; return the number of frames.

    Raises CaptureError where the capture cannot be read, or holds what a text cannot say.
    """
    text = _Text(*survey(reader, query), numbered=query == _ANY)
    empty = True
    for ref, item in reader.items(query.wants_block):
        empty = False
        for statement in text.begin(ref):
            out.write(statement.encode())
        for statement in text.statements(ref, item, query):
            out.write(statement.encode())
    if empty:
        segment = next(iter(reader.segments()), None)
        out.write("".join(text.recording(segment) if segment else [f"{FIRST_LINE}\n"]).encode())
    return text.frames


class _Text:
    """A text while it is written.  numbered: numbers of frames that are not the next ones are told."""

    def __init__(self, connections: dict[ConnectionId, Connection], names: Names, *, numbered: bool) -> None:
        self.frames = 0
        self._connections = connections
        self._names = names
        self._numbered = numbered
        self._t = 0
        self._clocks: int | None = None  # the wall clock less the monotonic one
        self._conn = 0
        self._segments: dict[int, Segment] = {}  # the last one of each run

    def begin(self, ref: BlockRef) -> Iterator[str]:
        """Yield the statements before an item that come with its segment."""
        segment = ref.segment
        before = self._segments.get(segment.run)
        if segment is before:
            return
        first = not self._segments
        self._segments[segment.run] = segment
        if first:
            yield from self.recording(segment)
        elif before is None:
            yield from self._time(ref, ref.summary.mono0 + ref.summary.t_first)
            yield write("note", dump_members({"rules": segment.rules, "run": _described(segment)}))
        elif segment.rules != before.rules:
            yield write("note", dump_members({"rules": segment.rules}))

    def recording(self, segment: Segment) -> Iterator[str]:
        """Yield the beginning of a text."""
        self._t, self._clocks = segment.mono, segment.wall - segment.mono
        lines = [f"recorder: {dump_value(segment.recorder.hex())}", f"boot: {dump_value(segment.boot.hex())}"]
        lines += [f"started: {dump_time(segment.wall)}", f"mono: {segment.mono}"]
        if segment.seed is not None:
            lines.append(f"seed: {segment.seed}")
        yield f"{FIRST_LINE}\n"
        yield write("recording", lines)
        if segment.settings:
            yield write("settings", dump_members(segment.settings))
        if segment.rules is not None:
            yield write("rules", dump_payload(segment.rules.encode()))
        if self._names.by_value:
            yield write("names", dump_members({name: value for value, name in self._names.by_value.items()}))

    def statements(self, ref: BlockRef, item: Item, query: Query) -> Iterator[str]:
        """Yield the statements of an item, as far as a query asks for it."""
        if isinstance(item, Frames):
            if query.wants_record(ref, item):
                for one in frames_of(ref, item):
                    if query.wants(one):
                        yield from self._frame(ref, item, one)
            return
        conn = ref.connection(item)
        if not query.wants_connection(ref, item):
            return
        wall = ref.wall(item.t)
        if (query.start is not None and wall < query.start) or (query.end is not None and wall > query.end):
            return
        connection = None if conn is None else self._connections[conn]
        yield from self._connection(connection)
        yield from self._time(ref, item.t)
        yield self._other(item, connection)

    def _connection(self, connection: Connection | None) -> Iterator[str]:
        if connection is None or connection.told:
            return
        connection.told = True
        lines = [] if connection.conn == self._conn + 1 else [f"id: {connection.conn}"]
        self._conn = connection.conn
        if connection.padded:
            lines.append(f"empty-fields: {' '.join(op.label for op in sorted(connection.padded))}")
        yield "\n" + write(f"connection {connection.label}", lines)

    def _time(self, ref: BlockRef, t: int) -> Iterator[str]:
        clocks = ref.summary.wall0 - ref.summary.mono0
        if t != self._t or clocks != self._clocks:
            moment = f" {dump_time(ref.wall(t))}" if clocks != self._clocks else ""
            yield f"@ {dump_offset(t - self._t)}{moment}\n"
        self._t, self._clocks = t, clocks

    def _other(self, item: Item, connection: Connection | None) -> str:
        label = "" if connection is None else f"{connection.label} "
        if isinstance(item, Opaque):
            return f"{label}{ARROWS[item.direction]} opaque {item.length}\n"
        if isinstance(item, Preamble) and connection is not None:
            for key, ordinal in preamble_ordinals(item.info).items():
                connection.next[key] = ordinal
        verb = VERBS[type(item)]
        if isinstance(item, Close):
            verb = f"{verb} {dump_value(item.cause)}"
        assert isinstance(item, Open | Preamble | Close | Firing | Gap | Note)
        return write(f"{label}{verb}", dump_members(item.info))

    def _frame(self, ref: BlockRef, item: Frames, one: CapturedFrame) -> Iterator[str]:
        if (item.in_first is None) != (item.in_t is None) or (item.out_first is None) != (item.out_t is None):
            raise CaptureError("a record that has a number without its time", path=ref.segment.path)
        connection = self._connections[one.conn]
        self.frames += 1
        yield from self._connection(connection)
        yield from self._time(ref, one.t)
        if one.frame is None:
            lines = dump_raw(one.data)
        else:
            # A frame that the client did not see, or did not send, is there for completeness only.
            played = (one.in_ordinal if one.direction == C2S else one.out_ordinal) is not None
            lines = dump_frame(one.frame, padded=one.frame.op in connection.padded, pretty=played)
        lines = self._names.put_in(lines, one.frame)
        remarks = self._remarks(connection, item, one)
        yield write(f"{connection.label} {ARROWS[one.direction]} {lines.line}", [*remarks, *lines.below])

    def _remarks(self, connection: Connection, item: Frames, one: CapturedFrame) -> list[str]:
        found = []
        for leg, ordinal, absent in (
            ("in", one.in_ordinal, "made here"),
            ("out", one.out_ordinal, "not passed"),
        ):
            if ordinal is None:
                found.append(absent)
                continue
            if ordinal != connection.next[one.direction, leg] and self._numbered:
                found.append(f"{leg}: {ordinal}")
            connection.next[one.direction, leg] = ordinal + 1
        if one.delay:
            found.append(f"delay: {dump_offset(one.delay)}")
        values: dict[str, Any] = {"cause": one.cause, "flags": _flags(one.flags) or None, "extra": item.extra}
        found += dump_members({key: value for key, value in values.items() if value is not None})
        return [f"* {remark}" for remark in found]


def _described(segment: Segment) -> dict[str, Any]:
    """Return what a text tells of a run but the first."""
    return {
        "recorder": segment.recorder.hex(),
        "boot": segment.boot.hex(),
        "started": dump_time(segment.wall),
        "mono": segment.mono,
        "seed": segment.seed,
        "settings": segment.settings,
    }


def _flags(flags: int) -> str | int:
    known = [flag for flag in Flags if flag and flags & flag]
    return " ".join(str(flag.name) for flag in known) if sum(known) == flags else flags
