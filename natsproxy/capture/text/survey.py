"""The first reading of a capture that becomes a text: labels and habits of connections, names of values.

Memory follows the number of connections.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Frames, Preamble
from natsproxy.capture.read.frames import Query, frames_of
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.text.frames import leaves_empty
from natsproxy.capture.text.names import Names
from natsproxy.capture.text.statements import RESERVED
from natsproxy.protocol.connect import parse_connect
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op
from natsproxy.wire.parse import head

_UNLIKE_LABEL: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_LABEL: Final = 40  # characters of a label, before its number


class Connection:
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


def survey(reader: CaptureReader, query: Query) -> tuple[dict[ConnectionId, Connection], Names]:
    """Return the connections of a capture, and the names of its values.

    Those of the first run keep their numbers, and those of later runs get the next ones that are free.
    """
    connections: dict[ConnectionId, Connection] = {}
    names = Names()
    wanted: dict[ConnectionId, str] = {}
    for ref, item in reader.items():  # of all blocks: one that is not wanted may hold the CONNECT
        conn = ref.connection(item)
        if conn is None or (query.conns and conn not in query.conns):
            continue
        connection = connections.setdefault(conn, Connection())
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


def _learn(connection: Connection, frame: Frame) -> None:
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
    """Return a label that nothing else has; it begins like the client's name."""
    stem = _UNLIKE_LABEL.sub("-", name)[:_LABEL].strip("-.") or f"conn-{conn}"
    label, number = stem, 1
    while label in taken:
        number += 1
        label = f"{stem}-{number if number < 10 else conn}"  # many clients may share a name
        if number > 10:
            label = f"{label}-{number}"
    return label
