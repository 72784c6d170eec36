"""The connections of two captures that correspond: by client name, and by what their clients sent.

Programs connect in any order, and workers of one name differ little.  So of the connections of one name,
those whose clients sent the most similar frames are partners; of equal ones those at the same position.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Frames, Preamble
from natsproxy.protocol.connect import parse_connect
from natsproxy.replay.conversation.exchanges import shape_of
from natsproxy.replay.conversation.steps import Step, scan, whole_frames
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op

_SENT: Final = (Op.PUB, Op.HPUB, Op.SUB)
_FRAMES: Final = 500  # frames of a connection that are compared
_CONNECTIONS: Final = 5000
_COMPARED: Final = 60  # connections of one name that are compared pairwise

Partners = tuple[dict[ConnectionId, ConnectionId], dict[ConnectionId, ConnectionId]]
"""The partner of each connection of the recorded and of the observed capture."""


@dataclass(slots=True)
class _Sender:
    """A connection.  sent: the shapes of its first frames, with their number."""

    conn: ConnectionId
    name: str = ""
    sent: Counter[int] = field(default_factory=Counter)
    frames: int = 0

    @property
    def is_known(self) -> bool:
        """True when enough of its frames were seen."""
        return self.frames >= _FRAMES

    def note(self, frame: Frame) -> None:
        """Count a frame of its client."""
        if frame.op == Op.CONNECT:
            self.name = _name(frame.args)
        elif frame.op in _SENT and not self.is_known:
            self.frames += 1
            self.sent[shape_of(frame)] += 1


def partners(recorded: Path | str, observed: Path | str) -> Partners:
    """Return the partners of all connections that have one.  Raises CaptureError if one cannot be read."""
    sides = _by_name(recorded), _by_name(observed)
    found: Partners = {}, {}
    left: tuple[list[_Sender], list[_Sender]] = [], []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        ours, theirs = (list(side.get(name, ())) for side in sides)
        for one, other in _alike(ours, theirs):
            found[0][one.conn], found[1][other.conn] = other.conn, one.conn
        for side, senders in enumerate((ours, theirs)):
            left[side].extend(one for one in senders if one.conn not in found[side])
    for one, other in _alike(*left):  # their names differ from run to run
        if one.sent & other.sent:
            found[0][one.conn], found[1][other.conn] = other.conn, one.conn
    return found


def _by_name(path: Path | str) -> dict[str, list[_Sender]]:
    senders: dict[ConnectionId, _Sender] = {}

    def cut(conn: ConnectionId, item: Frames, seq: int, t: int) -> tuple[list[Step], int]:
        sender = senders.get(conn)
        if item.direction == C2S and (len(senders) < _CONNECTIONS if sender is None else not sender.is_known):
            sender = senders.setdefault(conn, _Sender(conn))
            for frame in whole_frames(item.data, item.direction, path):
                sender.note(frame)
        return [], item.frames

    for _, item, found in scan(path, cut):
        if isinstance(item, Preamble):
            for event in found:
                if isinstance(event, Step):
                    senders.setdefault(event.conn, _Sender(event.conn)).note(event.frame)
    by_name: defaultdict[str, list[_Sender]] = defaultdict(list)
    for _, sender in sorted(senders.items(), key=lambda one: one[0][1:]):
        by_name[sender.name].append(sender)
    return by_name


def _name(args: bytes) -> str:
    try:
        return parse_connect(args).name
    except ValueError:
        return ""


def _alike(ours: list[_Sender], theirs: list[_Sender]) -> Iterator[tuple[_Sender, _Sender]]:
    if max(len(ours), len(theirs)) > _COMPARED:
        yield from zip(ours, theirs, strict=False)
        return
    scores = sorted(
        (-(one.sent & other.sent).total(), abs(a - b), a, b)
        for a, one in enumerate(ours)
        for b, other in enumerate(theirs)
    )
    taken: tuple[set[int], set[int]] = set(), set()
    for _, _, a, b in scores:
        if a not in taken[0] and b not in taken[1]:
            taken[0].add(a)
            taken[1].add(b)
            yield ours[a], theirs[b]
