"""Items to text: a capture is read twice, first for the names of its connections, then for its items.

Memory follows the number of connections, and the size of a block.  What goes without saying is left out: a
number that is the next one, a moment that an item shares with the one before it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import IO, Any, Final

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
from natsproxy.capture.text.frames import FrameLines, dump_frame, dump_raw, leaves_empty
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
_ANY: Final = Query()


def write_text(reader: CaptureReader, out: IO[bytes], query: Query = _ANY) -> int:
    """Write the items that `query` asks for as text; return the number of frames.

    Raises CaptureError where the capture cannot be read, or holds what a text cannot say.
    """
    text = _Text(_names(reader, query), numbered=query == _ANY)
    segment: Segment | None = None
    for ref, item in reader.items(query.wants_block):
        for statement in text.begin(ref, segment):
            out.write(statement.encode())
        segment = ref.segment
        for statement in text.statements(ref, item, query):
            out.write(statement.encode())
    if segment is None:
        segment = next(iter(reader.segments()), None)
        out.write("".join(text.recording(segment) if segment else [f"{FIRST_LINE}\n"]).encode())
    return text.frames


class _Name:
    """A connection: its label, the ops whose missing field it writes as an empty one, its next numbers."""

    def __init__(self, conn: int) -> None:
        self.conn = conn
        self.label = ""
        self.padded: set[Op] = set()
        self.seen: set[Op] = set()
        self.told = False
        self.next: dict[tuple[Direction, str], int] = defaultdict(int)


def _names(reader: CaptureReader, query: Query) -> dict[int, _Name]:
    """Return the connections of a capture with their names."""
    names: dict[int, _Name] = {}
    wanted: dict[int, str] = {}
    for ref, item in reader.items():  # of all blocks: one that is not wanted may hold the CONNECT
        conn = getattr(item, "conn", None)
        if conn is None or (query.conns and conn not in query.conns):
            continue
        name = names.setdefault(conn, _Name(conn))
        connect: Frame | None = None
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                if one.frame is not None and one.direction == C2S:
                    connect = one.frame if one.frame.op == Op.CONNECT else connect
                    _learn(name, one.frame)
        elif isinstance(item, Preamble):
            connect = head(bytes(item.info.get("connect") or b""), C2S)
        if connect is not None and conn not in wanted:
            wanted[conn] = _client_name(connect)
    taken: set[str] = set(RESERVED)
    for conn, name in sorted(names.items()):
        name.label = _label(wanted.get(conn, ""), conn, taken)
        taken.add(name.label)
    return names


def _learn(name: _Name, frame: Frame) -> None:
    if frame.op not in name.seen and not (frame.reply or frame.queue or frame.args):
        name.seen.add(frame.op)
        if leaves_empty(frame):
            name.padded.add(frame.op)


def _client_name(connect: Frame) -> str:
    try:
        return parse_connect(connect.args).name
    except ValueError:
        return ""


def _label(name: str, conn: int, taken: set[str]) -> str:
    """Return a label that nothing else has; it begins like the client's name."""
    stem = _UNLIKE_LABEL.sub("-", name)[:_LABEL].strip("-.") or f"conn-{conn}"
    label, number = stem, 1
    while label in taken:
        number += 1
        label = f"{stem}-{number if number < 10 else conn}"  # many clients may share a name
        if number > 10:
            label = f"{label}-{number}"
    return label


class _Text:
    """A text while it is written.  numbered: numbers of frames that are not the next ones are told."""

    def __init__(self, names: dict[int, _Name], *, numbered: bool) -> None:
        self.frames = 0
        self._names = names
        self._numbered = numbered
        self._t = 0
        self._clocks: int | None = None  # the wall clock less the monotonic one
        self._conn = 0

    def begin(self, ref: BlockRef, before: Segment | None) -> Iterator[str]:
        """Yield the statements before an item that come with its segment."""
        segment = ref.segment
        if segment is before:
            return
        if before is None:
            yield from self.recording(segment)
        elif segment.recorder != before.recorder:
            text = "two recorders wrote it: export the captures of each one by itself"
            raise CaptureError(text, path=segment.path)
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

    def statements(self, ref: BlockRef, item: Item, query: Query) -> Iterator[str]:
        """Yield the statements of an item, as far as a query asks for it."""
        if isinstance(item, Frames):
            if query.wants_record(item):
                for one in frames_of(ref, item):
                    if query.wants(one):
                        yield from self._frame(ref, item, one)
            return
        conn = getattr(item, "conn", None)
        if conn is not None and query.conns and conn not in query.conns:
            return
        wall = ref.wall(item.t)
        if (query.start is not None and wall < query.start) or (query.end is not None and wall > query.end):
            return
        name = None if conn is None else self._names[conn]
        yield from self._connection(name)
        yield from self._time(ref, item.t)
        yield self._other(item, name)

    def _connection(self, name: _Name | None) -> Iterator[str]:
        if name is None or name.told:
            return
        name.told = True
        lines = [] if name.conn == self._conn + 1 else [f"id: {name.conn}"]
        self._conn = name.conn
        if name.padded:
            lines.append(f"empty-fields: {' '.join(op.label for op in sorted(name.padded))}")
        yield "\n" + write(f"connection {name.label}", lines)

    def _time(self, ref: BlockRef, t: int) -> Iterator[str]:
        clocks = ref.summary.wall0 - ref.summary.mono0
        if t != self._t or clocks != self._clocks:
            moment = f" {dump_time(ref.wall(t))}" if clocks != self._clocks else ""
            yield f"@ {dump_offset(t - self._t)}{moment}\n"
        self._t, self._clocks = t, clocks

    def _other(self, item: Item, name: _Name | None) -> str:
        label = "" if name is None else f"{name.label} "
        if isinstance(item, Opaque):
            return f"{label}{ARROWS[item.direction]} opaque {item.length}\n"
        if isinstance(item, Preamble) and name is not None:
            for key, ordinal in preamble_ordinals(item.info).items():
                name.next[key] = ordinal
        verb = VERBS[type(item)]
        if isinstance(item, Close):
            verb = f"{verb} {dump_value(item.cause)}"
        assert isinstance(item, Open | Preamble | Close | Firing | Gap | Note)
        return write(f"{label}{verb}", dump_members(item.info))

    def _frame(self, ref: BlockRef, item: Frames, one: CapturedFrame) -> Iterator[str]:
        if (item.in_first is None) != (item.in_t is None) or (item.out_first is None) != (item.out_t is None):
            raise CaptureError("a record that has a number without its time", path=ref.segment.path)
        name = self._names[one.conn]
        self.frames += 1
        yield from self._connection(name)
        yield from self._time(ref, one.t)
        if one.frame is None:
            lines = dump_raw(one.data)
        else:
            # A frame that the client did not see, or did not send, is there for completeness only.
            played = (one.in_ordinal if one.direction == C2S else one.out_ordinal) is not None
            lines = dump_frame(one.frame, padded=one.frame.op in name.padded, pretty=played)
        yield framewrite(name.label, one.direction, lines, self._remarks(name, item, one))

    def _remarks(self, name: _Name, item: Frames, one: CapturedFrame) -> list[str]:
        found = []
        for leg, ordinal, absent in (
            ("in", one.in_ordinal, "made here"),
            ("out", one.out_ordinal, "not passed"),
        ):
            if ordinal is None:
                found.append(absent)
                continue
            if ordinal != name.next[one.direction, leg] and self._numbered:
                found.append(f"{leg}: {ordinal}")
            name.next[one.direction, leg] = ordinal + 1
        if one.delay:
            found.append(f"delay: {dump_offset(one.delay)}")
        values: dict[str, Any] = {"cause": one.cause, "flags": _flags(one.flags) or None, "extra": item.extra}
        found += dump_members({key: value for key, value in values.items() if value is not None})
        return [f"* {remark}" for remark in found]


def framewrite(label: str, direction: Direction, lines: FrameLines, remarks: list[str]) -> str:
    """Return the statement of a frame."""
    return write(f"{label} {ARROWS[direction]} {lines.line}", [*remarks, *lines.below])


def _flags(flags: int) -> str | int:
    known = [flag for flag in Flags if flag and flags & flag]
    return " ".join(str(flag.name) for flag in known) if sum(known) == flags else flags
