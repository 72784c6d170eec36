"""The frames of a recorded run, each with the connection key that its rules see.

The key is that of `Connections`: `#ordinal` until the CONNECT, then `name/n`, the n-th client of that name to
introduce itself; a client without a name keeps its ordinal.  Only frames that arrived count: those that the
proxy made are none of the program's.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Flags, Frames, OpenRecord
from natsproxy.capture.read.frames import frames_of
from natsproxy.capture.read.reader import open_capture
from natsproxy.protocol.connect import parse_connect
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction, Op


class Arrived(NamedTuple):
    """A frame that arrived.

    key: the connection key in force at it.  t: ns since the start of the recording.  ordinal: its number on
    its connection and direction.
    """

    conn: ConnectionId
    key: str
    direction: Direction
    t: int
    ordinal: int
    frame: Frame


class Traffic(NamedTuple):
    """A recorded run.

    frames: by the time of their arrival.  opened, closed: when connections did (ns since the start).
    """

    frames: list[Arrived]
    opened: dict[ConnectionId, int]
    closed: dict[ConnectionId, int]


def traffic(capture: Path) -> Traffic:
    """Read a capture.  Raises CaptureError."""
    start: int | None = None
    found: list[Arrived] = []
    opened: dict[ConnectionId, int] = {}
    closed: dict[ConnectionId, int] = {}
    ordinals: dict[ConnectionId, int] = {}
    runs: dict[int, int] = {}  # what to add to the clock of a run; blocks of one run share that clock
    for ref, item in open_capture(capture).items():
        since = runs.setdefault(ref.segment.run, ref.wall(item.t) - item.t)
        start = item.t + since if start is None else start
        t = item.t + since - start
        conn = ref.connection(item)
        if isinstance(item, OpenRecord):
            assert conn is not None
            opened[conn] = t
            ordinals[conn] = int(item.info.get("ordinal") or item.conn)
        elif isinstance(item, CloseRecord):
            assert conn is not None
            closed[conn] = t
        elif isinstance(item, Frames) and item.in_first is not None and not item.flags & Flags.CUT:
            for one in frames_of(ref, item):
                if one.in_ordinal is not None and (frame := one.head) is not None:
                    found.append(Arrived(one.conn, "", one.direction, t, one.in_ordinal, frame))
    return Traffic(_with_keys(_in_order(found), ordinals), opened, closed)


def _in_order(found: list[Arrived]) -> list[Arrived]:
    """Sort frames by arrival: a held one is recorded when it leaves.

    In a direction the ordinals decide: two frames of one read may have times that differ by microseconds.
    """
    latest: dict[tuple[ConnectionId, Direction], int] = {}
    ordered: list[Arrived] = []
    for one in sorted(found, key=attrgetter("ordinal")):
        way = one.conn, one.direction
        latest[way] = t = max(one.t, latest.get(way, 0))
        ordered.append(one._replace(t=t))
    return sorted(ordered, key=attrgetter("t", "ordinal"))


def _with_keys(found: list[Arrived], ordinals: dict[ConnectionId, int]) -> list[Arrived]:
    names: Counter[tuple[int, str]] = Counter()
    keys: dict[ConnectionId, str] = {}
    greeted: set[ConnectionId] = set()
    keyed: list[Arrived] = []
    for one in found:
        conn = one.conn
        if one.frame.op == Op.CONNECT and conn not in greeted:
            greeted.add(conn)
            name = _name_of(one.frame)
            if name:
                names[conn.run, name] += 1
                keys[conn] = f"{name}/{names[conn.run, name]}"
        keyed.append(one._replace(key=keys.get(conn) or f"#{ordinals.get(conn, conn.number)}"))
    return keyed


def _name_of(connect: Frame) -> str:
    """Return the name in a CONNECT; empty where it cannot be read."""
    try:
        return parse_connect(connect.args).name
    except ValueError:
        return ""
