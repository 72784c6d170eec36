"""The frames of a recorded run, each with the connection key that its rules see.

The key is that of `Connections`: `#ordinal` until the CONNECT, then `name/n`, the n-th client of that name to
introduce itself; a client without a name keeps its ordinal.  A name that is new in each run (`worker-<uuid>`)
is known by its template instead: `worker-*/n`.  Only frames that arrived count: those that the
proxy made are none of the program's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Flags, Frames, OpenRecord
from natsproxy.capture.read.frames import frames_of
from natsproxy.capture.read.reader import open_capture
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.template import name_template
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction, Op


class Arrived(NamedTuple):
    """A frame that arrived.

    key: the connection key in force at it.  alike: the key that it has by the template of its client's name.
    t: ns since the start of the recording.  ordinal: its number on its connection and direction.
    """

    conn: ConnectionId
    key: str
    direction: Direction
    t: int
    ordinal: int
    frame: Frame
    alike: str = ""


class Traffic(NamedTuple):
    """A recorded run.

    frames: by the time of their arrival.  opened, closed: when connections did (ns since the start).
    names: of the clients.
    """

    frames: list[Arrived]
    opened: dict[ConnectionId, int]
    closed: dict[ConnectionId, int]
    names: frozenset[str] = frozenset()

    def known_by(self, names: Collection[str]) -> Traffic:
        """Return the same run, where clients of other names than these are known by their templates."""
        frames = [
            one if one.key.rpartition("/")[0] in names else one._replace(key=one.alike) for one in self.frames
        ]
        return self._replace(frames=frames)


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
    keyed, names = _with_keys(_in_order(found), ordinals)
    return Traffic(keyed, opened, closed, names)


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


def _with_keys(
    found: list[Arrived], ordinals: dict[ConnectionId, int]
) -> tuple[list[Arrived], frozenset[str]]:
    names: Counter[tuple[int, str]] = Counter()
    likes: Counter[tuple[int, str]] = Counter()
    keys: dict[ConnectionId, tuple[str, str]] = {}
    greeted: set[ConnectionId] = set()
    keyed: list[Arrived] = []
    for one in found:
        conn = one.conn
        if one.frame.op == Op.CONNECT and conn not in greeted:
            greeted.add(conn)
            name = _name_of(one.frame)
            if name:
                like = name_template(name)
                names[conn.run, name] += 1
                likes[conn.run, like] += 1
                keys[conn] = f"{name}/{names[conn.run, name]}", f"{like}/{likes[conn.run, like]}"
        unnamed = f"#{ordinals.get(conn, conn.number)}"
        key, alike = keys.get(conn, (unnamed, unnamed))
        keyed.append(one._replace(key=key, alike=alike))
    return keyed, frozenset(name for _, name in names)


def _name_of(connect: Frame) -> str:
    """Return the name in a CONNECT; empty where it cannot be read."""
    try:
        return parse_connect(connect.args).name
    except ValueError:
        return ""
