"""The dependencies of a recorded client frame: the events that must happen before it is sent again.

A frame that answered a message is never sent before that message came.  The dependencies do not need the
identifiers of the new run:

- *counts*: on each plain subscription of this connection, as many messages as had been received then, and the
  subjects of the newest, which tell their likely causes.  Messages that the server's clock or chance sends
  do not count: heartbeats, flow control, redeliveries, deliveries to queue groups.
- *API answers*: the JetStream API calls of all connections that had been answered since this one sent last (a
  stream that one connection creates is published to by another); at most the last 256.
- *interest*: SUBs of other connections that were recorded before a publish and match it are known to the
  server (a PING of ours behind each SUB makes sure).
- *requests*: an answer waits until any connection has received its request, whichever queue member that is
  now.  A publish to the inbox of a request that nobody received (of a pull, say) is no answer.
- *order*: SUBs (inboxes aside), UNSUBs and ends of connections wait until the server has handled all frames
  recorded before; frames recorded after an end wait for it.

Acks wait for the delivery that they acknowledge: that needs identifiers, so `readiness.py` decides it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import is_api, parse_ack
from natsproxy.replay.conversation.steps import Step
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_ANSWERS: Final = 256
_BY_CLOCK: Final = (b"100",)  # statuses: heartbeats and flow control
_SUBJECTS: Final = 16

Answer = tuple[ConnectionId, bytes]
"""An answer of the JetStream API: the connection that got it, and its inbox."""


class MessageCount(NamedTuple):
    """A number of messages on a subscription.  subjects: of the newest, where they were looked at."""

    sid: bytes
    messages: int
    subjects: tuple[bytes, ...] = ()


class Planned(NamedTuple):
    """A client frame to send.

    counts: messages received before.  api: the API answers it depends on, of all connections.  after: seq of
    the request that it answers, -1 for none.
    """

    step: Step
    counts: tuple[MessageCount, ...] = ()
    api: tuple[Answer, ...] = ()
    after: int = -1


class PlannedEnd(NamedTuple):
    """A recorded end of a connection; all that was recorded before `seq` goes first.  t: ns."""

    seq: int
    t: int
    counts: tuple[MessageCount, ...] = ()


@dataclass(slots=True)
class _PlayedConnection:
    received: dict[bytes, int] = field(default_factory=dict)
    new_subjects: dict[bytes, dict[bytes, None]] = field(default_factory=dict)  # subjects, by sid
    queued: set[bytes] = field(default_factory=set)
    answers_taken: int = 0  # API answers that its frames depend on already

    def take_new_counts(self) -> tuple[MessageCount, ...]:
        """Return the counts that changed since the last call."""
        new, self.new_subjects = self.new_subjects, {}
        return tuple(MessageCount(sid, self.received[sid], tuple(subjects)) for sid, subjects in new.items())


def counts(frame: Frame) -> bool:
    """Return whether a server frame is a message that another run will receive, too."""
    if frame.op not in (Op.MSG, Op.HMSG):
        return False
    if frame.reply.startswith(b"$JS.ACK."):
        ack = parse_ack(frame.reply)
        return ack is None or ack.delivered == 1
    return not frame.header_size or headers.parse(frame.headers).code not in _BY_CLOCK


class Dependencies:
    """Finds the dependencies of client frames; it takes every step of a capture, in order."""

    def __init__(self) -> None:
        self._connections: dict[ConnectionId, _PlayedConnection] = {}
        self._calls: BoundedDict[bytes, None] = BoundedDict()
        self._answered: deque[Answer] = deque(maxlen=_ANSWERS)
        self._answer_count = 0
        self._requests: BoundedDict[bytes, int] = BoundedDict()
        self._delivered: BoundedDict[bytes, int] = BoundedDict()

    def received(self, step: Step) -> None:
        """Note a server frame."""
        frame = step.frame
        if frame.reply in self._requests:
            self._delivered[frame.reply] = self._requests[frame.reply]
        if not counts(frame):
            return
        if frame.subject in self._calls:
            del self._calls[frame.subject]
            self._answered.append((step.conn, frame.subject))
            self._answer_count += 1
        self.count_messages(step.conn, frame.sid, 1, frame.subject)

    def count_messages(self, conn: ConnectionId, sid: bytes, count: int, subject: bytes = b"") -> None:
        """Note messages on a subscription that are only counted."""
        known = self._connection(conn)
        if sid not in known.queued:
            known.received[sid] = known.received.get(sid, 0) + count
            subjects = known.new_subjects.setdefault(sid, {})
            if subject and len(subjects) < _SUBJECTS:
                subjects[subject] = None

    def sent(self, step: Step) -> Planned:
        """Return a client frame with its dependencies."""
        frame = step.frame
        known = self._connection(step.conn)
        if frame.op == Op.SUB:
            known.received.pop(frame.sid, None)
            known.new_subjects.pop(frame.sid, None)
            # The server chooses the member of a queue group: another run gives each another count.
            (known.queued.add if frame.queue else known.queued.discard)(frame.sid)
        elif frame.reply:
            self._requests[frame.reply] = step.seq
        # A pull is answered with messages, which `counts` covers, and not with one API response.
        if frame.reply and is_api(frame.subject) and b".MSG.NEXT." not in frame.subject:
            self._calls[frame.reply] = None
        return Planned(step, *self.requirements(step.conn), self._delivered.get(frame.subject, -1))

    def requirements(self, conn: ConnectionId) -> tuple[tuple[MessageCount, ...], tuple[Answer, ...]]:
        """Return the counts and API answers that the next client frame of a connection waits for."""
        known = self._connections.get(conn)
        counts: tuple[MessageCount, ...] = ()
        if known is not None and known.new_subjects:
            counts = known.take_new_counts()
        if known is not None and known.answers_taken == self._answer_count:
            return counts, ()
        known = known or self._connection(conn)
        fresh = min(self._answer_count - known.answers_taken, len(self._answered))  # older ones are forgotten
        known.answers_taken = self._answer_count
        return counts, tuple(self._answered)[len(self._answered) - fresh :]

    def answers(self, subject: bytes) -> bool:
        """Return whether a publish answers a request that was recorded."""
        return subject in self._delivered

    def ended(self, conn: ConnectionId, seq: int, t: int) -> PlannedEnd:
        """Return the end of a connection; seq: the next frame's."""
        known = self._connections.pop(conn, None)
        return PlannedEnd(seq, t, known.take_new_counts() if known is not None else ())

    def _connection(self, conn: ConnectionId) -> _PlayedConnection:
        found = self._connections.get(conn)
        if found is None:
            found = self._connections[conn] = _PlayedConnection()
        return found
