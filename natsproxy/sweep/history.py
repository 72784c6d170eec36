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
from natsproxy.wire.ops import C2S, MESSAGE_OPS, Direction, Op

_OWN: Final = (b"$KV.", b"$O.")
"""Subjects below `$` that programs publish to: key-value entries and objects."""


class Sent(NamedTuple):
    """A frame that a client sent.

    t: when it came.  passed: it went on to the server.  whole: it came to its end.
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
    found = History()
    for ref, item in open_capture(path).items():
        if isinstance(item, Frames):
            for one in frames_of(ref, item):
                _note(found, one)
        elif isinstance(item, CloseRecord) and item.cause != close_reasons.CLIENT_CLOSED:
            found.lost.append(Lost(item.t, ref.segment.connection(item.conn)))
    found.got.sort(key=lambda one: one.t)
    return found


def _note(found: History, one: CapturedFrame) -> None:
    frame, passed, whole = one.head, one.out_ordinal is not None, one.frame is not None
    if frame is None:
        return
    if one.in_ordinal is not None and (not passed or not whole or one.delay > MILLISECOND):
        found.touched.append(Touched(one.t, one.direction, frame))
    if one.direction == C2S:
        if one.in_ordinal is not None:
            found.sent.append(Sent(one.t, one.conn, frame, passed and whole, whole))
    elif frame.op in MESSAGE_OPS and passed and whole:
        found.got.append(Got(one.t + one.delay, one.conn, frame, one.in_ordinal is None))
