"""Items to text: a capture is read twice, first for the names of its connections, then for its items.

Memory grows with the number of connections and the size of a block.  Defaults are left out: a number that is
the next one, the time of an item if the one before it has the same, declarations of connections that say
nothing.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    Flags,
    Frames,
    GapRecord,
    Item,
    Note,
    OpaqueRecord,
    OpenRecord,
    Preamble,
)
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import BlockRef, Segment
from natsproxy.capture.text.brief import brief_items
from natsproxy.capture.text.frames import dump_frame, dump_raw, leaves_empty
from natsproxy.capture.text.names import Names
from natsproxy.capture.text.payload import dump_payload
from natsproxy.capture.text.statements import ARROWS, FIRST_LINE, RESERVED, VERBS, preamble_ordinals, write
from natsproxy.capture.text.values import dump_members, dump_offset, dump_time, dump_value
from natsproxy.errors import CaptureError
from natsproxy.protocol.connect import parse_connect
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op
from natsproxy.wire.parse import head

_UNLIKE_LABEL: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_LABEL: Final = 40  # characters of a label, before its number


class LabelledConnection:
    """A connection: its label, the ops whose missing field it writes as an empty one, its next numbers.

    conn: its number in the text.
    """

    def __init__(self) -> None:
        self.conn = 0
        self.label = ""
        self.padded: set[Op] = set()
        self.seen: set[Op] = set()
        self.told = False
        self.next: dict[tuple[Direction, str], int] = defaultdict(int)


def survey(
    items: Iterable[tuple[BlockRef, Item]], query: Query
) -> tuple[dict[ConnectionId, LabelledConnection], Names]:
    """Return the connections of items in their order, and the names of their values.

    Those of the first run keep their numbers, and those of later runs get the next ones that are free.
    """
    connections: dict[ConnectionId, LabelledConnection] = {}
    names = Names()
    wanted: dict[ConnectionId, str] = {}
    for ref, item in items:
        conn = ref.connection(item)
        if conn is None or (query.conns and conn not in query.conns):
            continue
        connection = connections.setdefault(conn, LabelledConnection())
        connect: Frame | None = None
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                if one.frame is None:
                    continue
                connect = one.frame if one.frame.op == Op.CONNECT else connect
                if one.direction == C2S:
                    _learn(connection, one.frame)
                if query.wants(one):
                    names.learn(one.frame)
        elif isinstance(item, Preamble):
            connect = head(bytes(item.info.get("connect") or b""), C2S)
        if connect is not None and conn not in wanted:
            wanted[conn] = _client_name(connect)
    taken: set[str] = set(RESERVED)
    in_order = sorted(connections.items(), key=lambda one: one[0][1:])
    numbers = itertools.count(1 + max((conn.number for conn, _ in in_order if conn.run == 1), default=0))
    for conn, connection in in_order:
        connection.conn = conn.number if conn.run == 1 else next(numbers)
        connection.label = _label(wanted.get(conn, ""), connection.conn, taken)
        taken.add(connection.label)
    return connections, names


def _learn(connection: LabelledConnection, frame: Frame) -> None:
    if frame.op not in connection.seen and not (frame.reply or frame.queue or frame.args):
        connection.seen.add(frame.op)
        if leaves_empty(frame):
            connection.padded.add(frame.op)


def _client_name(connect: Frame) -> str:
    try:
        return parse_connect(connect.args).name
    except ValueError:
        return ""


def _label(name: str, conn: int, taken: set[str]) -> str:
    """Return a unique label that begins with the client's name."""
    stem = _UNLIKE_LABEL.sub("-", name)[:_LABEL].strip("-.") or f"conn-{conn}"
    label, number = stem, 1
    while label in taken:
        number += 1
        label = f"{stem}-{number if number < 10 else conn}"  # many clients may share a name
        if number > 10:
            label = f"{label}-{number}"
    return label


_ANY: Final = Query()


def write_text(reader: CaptureReader, out: IO[bytes], query: Query = _ANY, *, brief: bool = False) -> int:
    """Write the items that match `query` as text; return the number of frames.

    brief: only what a cassette needs (`brief.py`).  Raises CaptureError where the capture cannot be read, or
    holds what a text cannot express.
    """
    if brief:
        text: _Text = _BriefText(*survey(brief_items(reader, query), _ANY), whole=query == _ANY)
        items, query = brief_items(reader, query), _ANY
    else:
        # Of all blocks: an unselected one may hold the CONNECT.
        text = _Text(*survey(reader.items(), query), whole=query == _ANY)
        items = reader.items(query.wants_block)
    empty = True
    for ref, item in items:
        for statement in text.begin(ref, item):
            out.write(statement.encode())
        for statement in text.statements(ref, item, query):
            out.write(statement.encode())
        empty = False
    if empty:
        segment = next(iter(reader.segments()), None)
        head = text.recording(segment, segment.wall) if segment else [f"{FIRST_LINE}\n"]
        out.write("".join(head).encode())
    return text.frames


class _Text:
    """A text being written.  whole: all items are, so numbers count."""

    def __init__(
        self, connections: dict[ConnectionId, LabelledConnection], names: Names, *, whole: bool
    ) -> None:
        self.frames = 0
        self._connections = connections
        self._names = names
        self._numbered = whole
        self._declares = not whole or any(
            connection.padded or connection.conn != number
            for number, connection in enumerate(connections.values(), 1)
        )
        self._t = 0
        self._clocks: int | None = None  # the wall clock less the monotonic one
        self._conn = 0
        self._segments: dict[int, Segment] = {}  # the last one of each run

    def begin(self, ref: BlockRef, item: Item) -> Iterator[str]:
        """Yield the statements before an item that come with its segment."""
        segment = ref.segment
        before = self._segments.get(segment.run)
        if segment is before:
            return
        first = not self._segments
        self._segments[segment.run] = segment
        if first:
            yield from self.recording(segment, item.t)
        elif before is None:
            yield from self._time(ref, ref.summary.mono0 + ref.summary.t_first)
            yield write("note", dump_members({"rules": segment.rules, "run": _described(segment)}))
        elif segment.rules != before.rules:
            yield write("note", dump_members({"rules": segment.rules}))

    def recording(self, segment: Segment, t: int) -> Iterator[str]:
        """Yield the beginning of a text, whose first item has the time `t`."""
        yield f"{FIRST_LINE}\n"
        lines = self._recording(segment, t)
        if lines:
            yield write("recording", lines)
        settings = self._settings(segment)
        if settings:
            yield write("settings", dump_members(settings))
        if segment.rules is not None:
            yield write("rules", dump_payload(segment.rules.encode()))
        if self._names.by_value:
            yield write("names", dump_members({name: value for value, name in self._names.by_value.items()}))
        if not self._declares and self._connections:
            yield "\n"

    def _recording(self, segment: Segment, t: int) -> list[str]:
        """Begin the clocks; return the facts about the recording that are not the defaults."""
        self._t, self._clocks = segment.mono, segment.wall - segment.mono
        facts = {
            "recorder": dump_value(segment.recorder.hex()) if any(segment.recorder) else "",
            "boot": dump_value(segment.boot.hex()) if segment.boot else "",
            "started": dump_time(segment.wall) if segment.wall else "",
            "mono": f"{segment.mono or ''}",
            "seed": "" if segment.seed is None else f"{segment.seed}",
        }
        return [f"{name}: {value}" for name, value in facts.items() if value]

    def _settings(self, segment: Segment) -> dict[str, Any]:
        return segment.settings

    def statements(self, ref: BlockRef, item: Item, query: Query) -> Iterator[str]:
        """Yield the statements of an item, as far as it matches a query."""
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

    def _connection(self, connection: LabelledConnection | None) -> Iterator[str]:
        if connection is None or connection.told:
            return
        connection.told = True
        if not self._declares:
            return
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

    def _other(self, item: Item, connection: LabelledConnection | None) -> str:
        label = "" if connection is None else f"{connection.label} "
        if isinstance(item, OpaqueRecord):
            return f"{label}{ARROWS[item.direction]} opaque {item.length}\n"
        if isinstance(item, Preamble) and connection is not None:
            for key, ordinal in preamble_ordinals(item.info).items():
                connection.next[key] = ordinal
        verb = VERBS[type(item)]
        if isinstance(item, CloseRecord):
            verb = f"{verb} {dump_value(item.cause)}"
        assert isinstance(item, OpenRecord | Preamble | CloseRecord | FiringRecord | GapRecord | Note)
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

    def _remarks(self, connection: LabelledConnection, item: Frames, one: CapturedFrame) -> list[str]:
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


class _BriefText(_Text):
    """A text of brief items: without what tells one recording from another but its time."""

    def begin(self, ref: BlockRef, item: Item) -> Iterator[str]:
        """Yield the beginning, once."""
        if not self._segments:
            self._segments[ref.segment.run] = ref.segment
            yield from self.recording(ref.segment, item.t)

    def _recording(self, segment: Segment, t: int) -> list[str]:
        self._t, self._clocks = t, 0
        return [f"started: {dump_time(t)}"] if t else []

    def _settings(self, segment: Segment) -> dict[str, Any]:
        options = segment.settings.get("cassette")
        return {"cassette": options} if options else {}

    def _time(self, ref: BlockRef, t: int) -> Iterator[str]:
        if t != self._t:
            yield f"@ {dump_offset(t - self._t)}\n"
        self._t = t


def _described(segment: Segment) -> dict[str, Any]:
    """Return what a text has about a later run."""
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
