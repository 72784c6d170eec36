"""The history of a run: its recording as the lists that a judge asks for.

The program's side counts: what its clients sent as it came to the proxy, whatever a rule did with it then,
and what they got as it left the proxy, whether a server or a rule made it.  A message that a rule took on its
way to the program is in `touched` alone.  Times are ns of the proxy's clock, as in firings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, Frames
from natsproxy.capture.read.frames import CapturedFrame, frames_of
from natsproxy.capture.read.reader import open_capture
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import ACK_PREFIX
from natsproxy.protocol.meaning import INBOX
from natsproxy.replay.diff.compared_frame import group_of
from natsproxy.session import close_reasons
from natsproxy.units import MILLISECOND
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, Direction, Op

_OWN: Final = (b"$KV.", b"$O.")
"""Subjects below `$` that programs publish to: key-value entries and objects."""


class Sent(NamedTuple):
    """A frame that a client sent.

    t: when it came.  passed: it went on to the server.  whole: all of it came.
    """

    t: int
    conn: ConnectionId
    frame: Frame
    passed: bool = True
    whole: bool = True


class Got(NamedTuple):
    """A message that a client got.  t: when it left.  made: a rule made it."""

    t: int
    conn: ConnectionId
    frame: Frame
    made: bool = False

    @property
    def status(self) -> bytes:
        """The code of its status line, `b""` without one."""
        return headers.parse(self.frame.headers).code if self.frame.header_size else b""


class Lost(NamedTuple):
    """A connection ended, and not because its client had closed it."""

    t: int
    conn: ConnectionId


class Touched(NamedTuple):
    """A frame that was withheld, or held for longer than a millisecond."""

    t: int
    direction: Direction
    frame: Frame


@dataclass(slots=True)
class History:
    """The frames that clients sent and got, the connections that they lost, and what was touched."""

    sent: list[Sent] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    touched: list[Touched] = field(default_factory=list)

    @property
    def published(self) -> list[Sent]:
        """The messages of the application: no acks, no calls of JetStream's API, no answers to an inbox."""
        return [one for one in self.sent if is_published(one.frame)]


def group(one: Sent) -> str:
    """Return the row of a publish: its subject with all that may be generated as `*`."""
    return group_of(one.frame.subject)


def is_published(frame: Frame) -> bool:
    """Tell whether a client frame is a message of the application, other than an answer to an inbox."""
    if frame.op not in (Op.PUB, Op.HPUB) or frame.subject.startswith(INBOX):
        return False
    return not frame.subject.startswith(b"$") or frame.subject.startswith(_OWN)


def is_delivery(frame: Frame) -> bool:
    """Tell whether a message comes from a consumer of JetStream."""
    return frame.op in MESSAGE_OPS and frame.reply.startswith(ACK_PREFIX)


def history(path: Path | str) -> History:
    """Return the history in a recording.  Raises CaptureError where it cannot be read."""
    found, reading = History(), _Reading()
    for ref, item in open_capture(path).items():
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                reading.note(found, one)
        elif isinstance(item, CloseRecord) and item.cause != close_reasons.CLIENT_CLOSED:
            found.lost.append(Lost(item.t, ref.segment.connection(item.conn)))
    found.got.sort(key=lambda one: one.t)
    found.touched.extend(reading.withheld.values())
    return found


_Ordinal = tuple[ConnectionId, Direction, int]


class _Reading:
    """The frames that came and have not left so far.

    A frame that a rule changed or doubled has a record of its coming, and one for each form in which it left.
    """

    def __init__(self) -> None:
        self.withheld: dict[_Ordinal, Touched] = {}
        self._sent: dict[_Ordinal, int] = {}

    def note(self, found: History, one: CapturedFrame) -> None:
        """Take a frame into a history."""
        frame = one.head
        if frame is None:
            return
        if one.in_ordinal is not None:
            self._came(found, one, frame)
        copy = one.in_ordinal is None and not self._left(found, one)
        if one.direction == S2C and frame.op in MESSAGE_OPS and _is_through(one):
            found.got.append(Got(one.t + one.delay, one.conn, frame, copy))

    def _came(self, found: History, one: CapturedFrame, frame: Frame) -> None:
        assert one.in_ordinal is not None, "it came"
        key = one.conn, one.direction, one.in_ordinal
        through = _is_through(one)
        if not through:
            self.withheld[key] = Touched(one.t, one.direction, frame)
        elif one.delay > MILLISECOND:
            found.touched.append(Touched(one.t, one.direction, frame))
        if one.direction == C2S:
            if not through:
                self._sent[key] = len(found.sent)
            found.sent.append(Sent(one.t, one.conn, frame, through, one.frame is not None))

    def _left(self, found: History, one: CapturedFrame) -> bool:
        """Tell whether a frame is the first form in which another one left, and note that it did."""
        if one.of is None or not _is_through(one):
            return False
        key = one.conn, one.direction, one.of
        if key in self._sent:
            at = self._sent.pop(key)
            found.sent[at] = found.sent[at]._replace(passed=True)
        return self.withheld.pop(key, None) is not None


def _is_through(one: CapturedFrame) -> bool:
    return one.out_ordinal is not None and one.frame is not None
