"""Text to items, one statement at a time.

A text is hostile input as a capture is: lengths are bounded, nothing is executed, and every failure is a
CaptureError that names the line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

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
from natsproxy.capture.text.frames import RAW, REMARK, load_frame
from natsproxy.capture.text.names import with_values
from natsproxy.capture.text.payload import load_payload
from natsproxy.capture.text.statements import (
    ARROWS,
    RESERVED,
    VERBS,
    TextStatement,
    preamble_ordinals,
    read_statements,
)
from natsproxy.capture.text.values import load_members, load_offset, load_time, load_value
from natsproxy.capture.write.writer import SegmentInfo
from natsproxy.errors import CaptureError, ProtocolError
from natsproxy.wire.ops import BY_TOKEN, Direction
from natsproxy.wire.parse import frames, head

_CLOCK: Final = 1 << 62
_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_HEX: Final = re.compile(r"(?:[0-9a-f]{2}){0,64}", re.ASCII)
_DIRECTIONS: Final = {arrow: direction for direction, arrow in ARROWS.items()}
_KINDS: Final[dict[str, Callable[..., Item]]] = {
    VERBS[OpenRecord]: OpenRecord,
    VERBS[Preamble]: Preamble,
    VERBS[FiringRecord]: FiringRecord,
    VERBS[GapRecord]: GapRecord,
}
_RECORDER: Final = 16  # bytes


class TimedItem(NamedTuple):
    """An item, and the wall clock less the monotonic one at its time."""

    clocks: int
    item: Item


class _ParsedConnection:
    """A connection of the text: its id, the ops of `empty-fields`, its next numbers."""

    def __init__(self, conn: int, padded: frozenset[bytes]) -> None:
        self.conn = conn
        self.padded = padded
        self.next: dict[tuple[Direction, str], int] = defaultdict(int)


class TextParser:
    """Reads a text.  info: its recording, read at once; `items` yields the rest."""

    def __init__(self, file: IO[bytes], path: Path | str) -> None:
        self.info = SegmentInfo(bytes(_RECORDER), b"", 0, 0)
        self._path = path
        self._connections: dict[str, _ParsedConnection] = {}
        self._names: dict[str, str] = {}
        self._conn = 0
        self._declares = False
        self._t = self._clocks = 0
        self._statements: Iterator[TextStatement] = read_statements(file, path)
        for statement in self._statements:
            if statement.line not in _BEGINNING and statement.line != "names":
                self._statements = chain([statement], self._statements)
                break
            with _placed(statement, path):
                self._begin(statement)
        self._t, self._clocks = self.info.mono, self.info.wall - self.info.mono

    def items(self) -> Iterator[TimedItem]:
        """Yield the items.  Raises CaptureError, which names the line."""
        for statement in self._statements:
            with _placed(statement, self._path):
                item = self._item(with_values(statement.line, self._names), statement.below)
            if item is not None:
                yield TimedItem(self._clocks, item)

    def _begin(self, statement: TextStatement) -> None:
        """Read a statement of the head (recording, settings, rules, names)."""
        if statement.line == "names":
            names = load_members(statement.below)
            self._names = {name: _text(value, name) for name, value in names.items()}
        else:
            self.info = _BEGINNING[statement.line](self.info, statement.below)

    def _item(self, line: str, below: list[str]) -> Item | None:
        """Return the item of a statement, None for one that only changes state."""
        word, _, rest = line.partition(" ")
        if line in _BEGINNING or line == "names":
            raise ValueError(f"{line} must come once, before all connections")
        if word == "@":
            self._pass(rest)
        elif word == "connection":
            self._declares = True
            self._declare(rest, below)
        elif line == VERBS[Note]:
            return Note(self._t, load_members(below))
        elif line == VERBS[GapRecord]:
            return GapRecord(None, self._t, load_members(below))
        else:
            if word not in self._connections:
                if self._declares or not rest or word in RESERVED:
                    text = f"{word[:60]!r} is not a connection; a line `connection LABEL` declares one"
                    raise ValueError(text)
                self._declare(word, [])
            return self._of(self._connections[word], rest, below)
        return None

    def _pass(self, rest: str) -> None:
        """Advance the clock."""
        offset, _, moment = rest.partition(" ")
        self._t += load_offset(offset)
        if moment:
            self._clocks = load_time(moment) - self._t
        if max(abs(self._t), abs(self._clocks), abs(self._t + self._clocks)) >= _CLOCK:
            raise ValueError("a time beyond what a clock shows")

    def _declare(self, label: str, below: list[str]) -> None:
        """Declare a connection."""
        if _LABEL.fullmatch(label) is None:
            raise ValueError(f"{label[:60]!r} is not a label: letters, digits, `_`, `-` and `.`")
        if label in self._connections:
            raise ValueError(f"connection {label} is already declared")
        members = load_members(below)
        self._conn = _number(members.pop("id", self._conn + 1), "id", least=-_CLOCK)
        padded = frozenset(_text(members.pop("empty-fields", ""), "empty-fields").encode().split())
        if not padded <= BY_TOKEN.keys():
            raise ValueError("empty-fields: it names operations, such as PUB SUB")
        _no_others(members)
        self._connections[label] = _ParsedConnection(self._conn, padded)

    def _of(self, connection: _ParsedConnection, rest: str, below: list[str]) -> Item:
        """Return an item of a connection."""
        verb, _, more = rest.partition(" ")
        direction = _DIRECTIONS.get(verb)
        if direction is not None and more.startswith("opaque "):
            return OpaqueRecord(connection.conn, direction, self._t, _number(load_value(more[7:]), "opaque"))
        if direction is not None:
            return self._frame(connection, direction, more, below)
        if verb == VERBS[CloseRecord]:
            return CloseRecord(
                connection.conn, self._t, _text(load_value(more), "closed"), load_members(below)
            )
        if verb not in _KINDS or more:
            verbs = ", ".join(("> FRAME", "< FRAME", VERBS[CloseRecord], *_KINDS))
            raise ValueError(f"{rest[:60]!r}: a connection is followed by one of {verbs}")
        info = load_members(below)
        if verb == VERBS[Preamble]:
            connection.next.update(preamble_ordinals(info))
        return _KINDS[verb](connection.conn, self._t, info)

    def _frame(
        self, connection: _ParsedConnection, direction: Direction, line: str, below: list[str]
    ) -> Frames:
        count = next((at for at, one in enumerate(below) if not one.startswith(REMARK)), len(below))
        remarks = [one.removeprefix(REMARK) for one in below[:count]]
        below = [with_values(one, self._names) for one in below[count:]]
        numbers, members = self._numbers(connection, direction, remarks)
        delay = load_offset(_text(members.pop("delay", "+0ms"), "delay"))
        cause, extra = members.pop("cause", None), members.pop("extra", None)
        if extra is not None and not isinstance(extra, dict):
            raise ValueError("extra: not a map")
        flags = _flags(members.pop("flags", ""))
        _no_others(members)
        token = line.partition(" ")[0].encode()
        data = load_frame(line, below, padded=token in connection.padded)
        ops = _ops(data, direction, flags)
        if line != RAW and not ops:
            raise ValueError(f"{token.decode()} is not a frame of this direction")
        came, went = numbers
        return Frames(
            connection.conn,
            direction,
            data,
            1,
            ops,
            came,
            None if came is None else self._t,
            went,
            None if went is None else self._t + (0 if came is None else delay),
            None if cause is None else _text(cause, "cause"),
            flags,
            extra,
        )

    def _numbers(
        self, connection: _ParsedConnection, direction: Direction, remarks: list[str]
    ) -> tuple[tuple[int | None, int | None], dict[str, Any]]:
        """Return the numbers of a frame on both legs, and the other remarks about it."""
        absent = {"in": "made here", "out": "not passed"}
        members = load_members([one for one in remarks if one not in absent.values()])
        found: list[int | None] = []
        for leg, remark in absent.items():
            if remark in remarks:
                found.append(None)
                continue
            number = _number(members.pop(leg, connection.next[direction, leg]), leg)
            connection.next[direction, leg] = number + 1
            found.append(number)
        return (found[0], found[1]), members


def _recording(info: SegmentInfo, below: list[str]) -> SegmentInfo:
    """Return the recording, updated from the lines below `recording`."""
    members = load_members(below)
    recorder = _hex(members.pop("recorder", "00" * _RECORDER), "recorder")
    if len(recorder) != _RECORDER:
        raise ValueError(f"recorder: it has {_RECORDER} bytes")
    boot, seed = _hex(members.pop("boot", ""), "boot"), members.pop("seed", None)
    wall = load_time(_text(members.pop("started", "+0s"), "started"))
    mono = _number(members.pop("mono", 0), "mono")
    _no_others(members)
    if abs(wall) >= _CLOCK:
        raise ValueError("started: a time beyond what a clock shows")
    seed = None if seed is None else _number(seed, "seed")
    return replace(info, recorder=recorder, boot=boot, wall=wall, mono=mono, seed=seed)


_BEGINNING: Final[dict[str, Callable[[SegmentInfo, list[str]], SegmentInfo]]] = {
    "recording": _recording,
    "settings": lambda info, below: replace(info, settings=load_members(below)),
    "rules": lambda info, below: replace(info, rules=load_payload(below).decode()),
}
"""The statements of the head."""


# -- values


def _ops(data: bytes, direction: Direction, flags: int) -> int:
    """Return the op mask of a frame; 0 for an incomplete one, whose op is not known."""
    if flags & ~Flags.REDACTED:
        begun = head(data, direction)
        return 0 if begun is None else begun.op.bit
    try:
        found = list(frames(data, direction))
    except ProtocolError as error:
        raise ValueError(f"not a NATS frame: {error}") from None
    if len(found) != 1:
        raise ValueError(f"{len(found)} frames, not one")
    return found[0].op.bit


def _flags(value: object) -> int:
    if isinstance(value, str):
        names = value.split()
        if not set(names) <= Flags.__members__.keys():
            raise ValueError(f"flags: {', '.join(name for name in Flags.__members__ if name != 'NONE')}")
        return sum(Flags[name] for name in set(names))
    return _number(value, "flags")


def _number(value: object, name: str, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value < _CLOCK:
        raise ValueError(f"{name}: not a number")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: not a text")
    return value


def _hex(value: object, name: str) -> bytes:
    text = _text(value, name)
    if _HEX.fullmatch(text) is None:
        raise ValueError(f"{name}: not a hexadecimal number")
    return bytes.fromhex(text)


def _no_others(members: dict[Any, Any]) -> None:
    if members:
        raise ValueError(f"{str(next(iter(members)))[:60]!r} is unknown here")


@contextmanager
def _placed(statement: TextStatement, path: Path | str) -> Iterator[None]:
    """Add the line of the statement to errors."""
    try:
        yield
    except ValueError as error:
        raise CaptureError(f"line {statement.number}: {error}", path=path) from None
