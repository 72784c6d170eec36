"""The items of a capture as values, and their msgpack form: one row per kind.

Times are absolute nanoseconds of the recorder's monotonic clock; on disk they are relative to their block's
`mono0`.  `recordings/FORMAT.md` specifies the fields of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag
from typing import Any, NamedTuple

from natsproxy.errors import CaptureError
from natsproxy.wire.ops import Direction


class Flags(IntFlag):
    """The ways in which the data of a `Frames` record differ from whole frames; flags are added together."""

    NONE = 0
    CUT = 1
    TRUNCATED = 2
    REDACTED = 4
    PAYLOAD = 8


class Frames(NamedTuple):
    """Frames of one direction of one connection; `None` in the fields of a leg that did not see them.

    ops: bitmask of the ops in it.  It is not stored with the record but in the block's summary, so records
    that were read from a file have 0.
    """

    conn: int
    direction: Direction
    data: bytes | memoryview
    frames: int
    ops: int
    in_first: int | None
    in_t: int | None
    out_first: int | None
    out_t: int | None
    cause: str | None = None
    flags: int = 0
    extra: dict[str, Any] | None = None

    @property
    def t(self) -> int:
        """The time of arrival; of departure for frames that the proxy made."""
        t = self.in_t if self.in_t is not None else self.out_t
        return t if t is not None else 0


class OpenRecord(NamedTuple):
    """A connection was accepted."""

    conn: int
    t: int
    info: dict[str, Any]


class CloseRecord(NamedTuple):
    """A connection ended; cause: one of `close_reasons.py`."""

    conn: int
    t: int
    cause: str
    info: dict[str, Any]


class FiringRecord(NamedTuple):
    """A rule acted; `info` has the fields of `events.Firing`."""

    conn: int
    t: int
    info: dict[str, Any]


class GapRecord(NamedTuple):
    """Traffic was not recorded; info: reason, bytes, frames, t0, t1."""

    conn: int | None
    t: int
    info: dict[str, Any]


class Preamble(NamedTuple):
    """The state of a connection that was open when its segment began."""

    conn: int
    t: int
    info: dict[str, Any]


class OpaqueRecord(NamedTuple):
    """Bytes that were passed but not framed, recorded as a length."""

    conn: int
    direction: Direction
    t: int
    length: int


class Note(NamedTuple):
    """A fact about the recording itself."""

    t: int
    info: dict[str, Any]


Item = Frames | OpenRecord | CloseRecord | FiringRecord | GapRecord | Preamble | OpaqueRecord | Note
NAMES: dict[type[Item], str] = {
    Frames: "frames",
    OpenRecord: "open",
    CloseRecord: "close",
    FiringRecord: "firing",
    GapRecord: "gap",
    Preamble: "preamble",
    OpaqueRecord: "opaque",
    Note: "note",
}
"""The item types in the order of their numbers on disk, each with its name in tables."""
KINDS: tuple[type[Item], ...] = tuple(NAMES)
"""The item types by their number on disk."""


def _rel(t: int | None, mono0: int) -> int | None:
    return None if t is None else t - mono0


def encode(item: Item, mono0: int) -> list[Any]:
    """Return the msgpack array of `item`, kind first, times relative to `mono0`."""
    if isinstance(item, Frames):
        fields: list[Any] = [
            0,
            item.conn,
            int(item.direction),
            int(item.flags),
            item.frames,
            item.in_first,
            _rel(item.in_t, mono0),
            item.out_first,
            _rel(item.out_t, mono0),
            item.cause,
            item.data,
        ]
        if item.extra is not None:
            fields.append(item.extra)
        return fields
    kind = KINDS.index(type(item))
    return [kind, *(_rel(value, mono0) if name == "t" else value for name, value in _named(item))]


def _named(item: Any) -> list[tuple[str, Any]]:
    return list(zip(item._fields, item, strict=True))


def _need(value: Any, *types: type) -> Any:
    if not isinstance(value, types) or isinstance(value, bool):  # True is an int to Python
        raise TypeError(f"{type(value).__name__} where {types[0].__name__} was expected")
    return value


def _maybe(value: Any, base: int = 0) -> int | None:
    return None if value is None else int(_need(value, int)) + base


def _frames(a: list[Any], mono0: int) -> Frames:
    direction = Direction(_need(a[2], int))
    cause = a[9] if a[9] is None else str(_need(a[9], str))
    extra = dict(_need(a[11], dict)) if len(a) > 11 and a[11] is not None else None
    return Frames(
        _need(a[1], int),
        direction,
        _need(a[10], bytes),
        _need(a[4], int),
        0,
        _maybe(a[5]),
        _maybe(a[6], mono0),
        _maybe(a[7]),
        _maybe(a[8], mono0),
        cause,
        _need(a[3], int),
        extra,
    )


def _conn_info(kind: Callable[..., Item]) -> Callable[[list[Any], int], Item]:
    return lambda a, mono0: kind(_need(a[1], int), _need(a[2], int) + mono0, _need(a[3], dict))


_DECODERS: tuple[Callable[[list[Any], int], Item], ...] = (
    _frames,
    _conn_info(OpenRecord),
    lambda a, m: CloseRecord(_need(a[1], int), _need(a[2], int) + m, _need(a[3], str), _need(a[4], dict)),
    _conn_info(FiringRecord),
    lambda a, m: GapRecord(_maybe(a[1]), _need(a[2], int) + m, _need(a[3], dict)),
    _conn_info(Preamble),
    lambda a, m: OpaqueRecord(
        _need(a[1], int), Direction(_need(a[2], int)), _need(a[3], int) + m, _need(a[4], int)
    ),
    lambda a, m: Note(_need(a[1], int) + m, _need(a[2], dict)),
)


def decode(fields: object, mono0: int) -> Item | None:
    """Return the item of a decoded msgpack array, None for a kind that this version does not know.

    Raises CaptureError for an item with invalid fields.
    """
    try:
        array = _need(fields, list)
        kind = _need(array[0], int)
        if not 0 <= kind < len(_DECODERS):
            return None
        item: Item = _DECODERS[kind](array, mono0)
        return item
    except (TypeError, ValueError, IndexError) as error:
        raise CaptureError(f"an item that does not match its kind: {error}") from None
