"""What a recorded client frame must wait for before it may be sent again: the causal plan to a server.

Nothing that answered a message is sent before that message came.  None of these
needs knows identifiers of the new run:

- *counts*: on each plain subscription of this connection, as many answers as had been received then, and the
  subjects of the newest, which tell what may have caused them.  What comes by the server's clock or by chance
  does not count: heartbeats, flow control, redeliveries, deliveries to queue groups.
- *API answers*: the JetStream API calls of all connections that had been answered since this one sent last (a
  stream that one connection creates is published to by another); no more than the last 256.
- *interest*: the SUBs of other connections recorded before it that match a publish are known to the server
  (a PING behind each SUB makes sure).

- *requests*: an answer waits until somebody has received its request, whichever queue member that is now;
  what is published to the inbox of a request that nobody received (of a pull, say) is no answer.
- *order*: SUBs (inboxes aside), UNSUBs and goodbyes wait until the server has everything recorded before;
  what was recorded after a goodbye waits for it.

Acks wait for the delivery that they acknowledge: that needs identifiers and is decided when they are sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import is_api, parse_ack
from natsproxy.replay.conversation.bounded import BoundedDict
from natsproxy.replay.conversation.steps import Step
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_ANSWERS = 256
_CHANCE = (b"100",)
_SUBJECTS = 16


class Count(NamedTuple):
    """So many messages on a subscription.  subjects: of the newest, as far as they were looked at."""

    sid: bytes
    messages: int
    subjects: tuple[bytes, ...] = ()


class Planned(NamedTuple):
    """A client frame to send.

    counts: answers received before.  api: the API answers needed, of all connections.  after: seq of
    the request that it answers, -1 for none.
    """

    step: Step
    counts: tuple[Count, ...] = ()
    api: tuple[tuple[int, bytes], ...] = ()
    after: int = -1


class PlannedEnd(NamedTuple):
    """The end of a connection: not before all that was recorded before it (seq) was sent and received."""

    seq: int
    t: int
    counts: tuple[Count, ...] = ()


@dataclass(slots=True)
class _Connection:
    received: dict[bytes, int] = field(default_factory=dict)
    news: dict[bytes, dict[bytes, None]] = field(default_factory=dict)  # subjects, by sid
    queued: set[bytes] = field(default_factory=set)
    told: int = 0  # API answers that it has waited for

    def take_news(self) -> tuple[Count, ...]:
        """Return what came since it was asked last."""
        news, self.news = self.news, {}
        return tuple(Count(sid, self.received[sid], tuple(subjects)) for sid, subjects in news.items())


def counts(frame: Frame) -> bool:
    """Tell whether a server frame is an answer that will come again in another run."""
    if frame.op not in (Op.MSG, Op.HMSG):
        return False
    if frame.reply.startswith(b"$JS.ACK."):
        ack = parse_ack(frame.reply)
        return ack is None or ack.delivered == 1
    return not frame.header_size or headers.parse(frame.headers).code not in _CHANCE


class Dependencies:
    """Finds what each client frame needs; feed it every step of a capture, in order."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._calls: BoundedDict[bytes, None] = BoundedDict()
        self._answered: deque[tuple[int, bytes]] = deque(maxlen=_ANSWERS)
        self._told = 0
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
            self._told += 1
        self.heard(step.conn, frame.sid, 1, frame.subject)

    def heard(self, conn: int, sid: bytes, count: int, subject: bytes = b"") -> None:
        """Note messages on a subscription of which nothing else counts."""
        known = self._connection(conn)
        if sid not in known.queued:
            known.received[sid] = known.received.get(sid, 0) + count
            subjects = known.news.setdefault(sid, {})
            if subject and len(subjects) < _SUBJECTS:
                subjects[subject] = None

    def sent(self, step: Step) -> Planned:
        """Return a client frame with what it needs."""
        frame = step.frame
        known = self._connection(step.conn)
        if frame.op == Op.SUB:
            known.received.pop(frame.sid, None)
            known.news.pop(frame.sid, None)
            (known.queued.add if frame.queue else known.queued.discard)(frame.sid)
        elif frame.reply:
            self._requests[frame.reply] = step.seq
        if frame.reply and is_api(frame.subject) and b".MSG.NEXT." not in frame.subject:
            self._calls[frame.reply] = None
        return Planned(step, *self.news(step.conn), self._delivered.get(frame.subject, -1))

    def news(self, conn: int) -> tuple[tuple[Count, ...], tuple[tuple[int, bytes], ...]]:
        """Return the counts and API answers that the next client frame of a connection waits for."""
        known = self._connections.get(conn)
        counts: tuple[Count, ...] = ()
        if known is not None and known.news:
            counts = known.take_news()
        if known is not None and known.told == self._told:
            return counts, ()
        known = known or self._connection(conn)
        fresh = min(self._told - known.told, len(self._answered))
        known.told = self._told
        return counts, tuple(self._answered)[len(self._answered) - fresh :]

    def answers(self, subject: bytes) -> bool:
        """Tell whether a publish answers a request that was recorded."""
        return subject in self._delivered

    def ended(self, conn: int, seq: int, t: int) -> PlannedEnd:
        """Return the end of a connection; seq: the next frame's."""
        known = self._connections.pop(conn, None)
        return PlannedEnd(seq, t, known.take_news() if known is not None else ())

    def _connection(self, conn: int) -> _Connection:
        found = self._connections.get(conn)
        if found is None:
            found = self._connections[conn] = _Connection()
        return found
