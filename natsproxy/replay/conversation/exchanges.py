"""The exchanges and effects of a recorded connection that wait to be played.

An exchange is a client frame and its effects.  An effect is a server frame, or the end of a connection, and
waits for its causes.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol.connect import Connect
from natsproxy.replay.conversation.causes import Timing
from natsproxy.replay.conversation.frame_kind import Consumer, FrameKind
from natsproxy.replay.conversation.identifier_map import IdentifierMap, masked
from natsproxy.replay.conversation.queues import Queues
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

OVERHEAD: Final = 512  # bytes counted for a frame's objects
_NEXT: Final = 16  # exchanges in whose order clients may be wrong without a cost
_SHAPED: Final = 4096  # bytes of a payload
_TRANSLATED: Final = 64 << 10  # bytes of a payload
_GENERATED: Final = re.compile(rb"[0-9A-Za-z_:+./-]{13,}")
Key = tuple[Op, bytes]
Place = bytes | Consumer
"""The cause that a queue waits for: a subscription, by its recorded sid, or a pull request at a consumer."""
QueueKey = tuple[bytes, bytes]
END: Final[QueueKey] = (b"", b"end")
"""The key of the queue that holds the end of a connection: no effect without a sid has this subject."""


@dataclass(slots=True, eq=False)
class RecordedExchange:
    """A recorded client frame with its effects.

    kind: see `frame_kind.py`.  matched: the time at which it happened live (ns), None before.  answers: of a
    READ that has happened.  reads, shows: the subject whose last message a READ is for, and the seq of the
    publish of the message that it got.  acked: a stream answered this publish (`stored_messages.py`).  key,
    exact: see `key_of` and `exact_key`.  shape: see `shape_of`, once it was needed.  size: bytes
    that it takes in the window.
    """

    seq: int
    conn: ConnectionId
    t: int
    frame: Frame
    kind: FrameKind = FrameKind.CHANGE
    effects: list[Effect] = field(default_factory=list)
    matched: int | None = None
    answers: list[Frame] = field(default_factory=list)
    reads: bytes = b""
    shows: int | None = None
    acked: bool = False
    key: Key = field(init=False)
    exact: int = field(init=False)
    size: int = field(init=False)
    shape: int | None = None

    def __post_init__(self) -> None:
        self.key = key_of(self.frame)
        self.exact = exact_key(self.key[0], self.frame.subject, self.frame.body)
        self.size = self.frame.wire_size + OVERHEAD


class Answered(NamedTuple):
    """The live client that gets an answer in place of the one that was recorded, its sid and the inbox."""

    client_id: int
    sid: bytes
    inbox: bytes


@dataclass(slots=True, eq=False)
class Effect:
    """A recorded server frame; frame is None for the end of the connection.

    pending_causes: the number of causes that have not happened.  caused_at: the time of the last cause (ns).
    due: the time from which it may be sent (ns), None while it waits.  offset: ns after its last cause, for a
    timed one.  stream, pulled: see `Cause`.  origin: the publish of which it is a copy.  live: its live
    frame.  to: the client that sent the request, where it plays another connection.  read: it
    answers a READ, so nobody misses it.  queue: see `queue_key`.  size: bytes that it takes in the window.
    """

    seq: int
    conn: ConnectionId
    t: int
    frame: Frame | None
    timing: Timing
    pending_causes: int = 0
    caused_at: int = 0
    due: int | None = None
    offset: int = 0
    stream: bool = False
    origin: RecordedExchange | None = None
    live: Frame | None = None
    to: Answered | None = None
    pulled: Consumer | None = None
    read: bool = False
    queue: QueueKey = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.queue = queue_key(self)
        self.size = 0 if self.frame is None else self.frame.wire_size + OVERHEAD


@dataclass(slots=True, eq=False)
class RecordedConnection:
    """A connection of the capture.

    exchanges: those not used yet, by `key_of` their frame.  exact: the same, by `exact_key`.
    queues: effects in the order in which they must be sent, by `queue_key`.  sids: recorded sid to live sid.
    parked: keys of queues that wait, by the place that they wait for.  client_id: the live client that plays
    it, None for nobody.  unused, unsent: the number of CHANGE exchanges, and of effects other than answers to
    READs, that are left.  changes: the former, by seq, in order.  first_seq, last_seq: seq of its CONNECT and
    of its last client frame.  top_sid: the greatest sid.
    """

    conn: ConnectionId
    connect: Connect | None = None
    exchanges: Queues[Key, RecordedExchange] = field(default_factory=Queues)
    exact: Queues[int, RecordedExchange] = field(default_factory=Queues)
    queues: dict[QueueKey, deque[Effect]] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    parked: dict[Place, dict[QueueKey, None]] = field(default_factory=dict)
    changes: OrderedDict[int, RecordedExchange] = field(default_factory=OrderedDict)
    client_id: int | None = None
    unused: int = 0
    unsent: int = 0
    first_seq: int = -1
    last_seq: int = -1
    top_sid: int = 0

    @property
    def name(self) -> str:
        """The client name of its CONNECT."""
        return self.connect.name if self.connect is not None else ""

    def candidates(
        self, frame: Frame, identifiers: IdentifierMap, *, any_subject: bool = False
    ) -> Iterator[RecordedExchange]:
        """Yield the exchanges that a live frame may match, in recorded order; equal ones first.

        Those are equal as they are, or with the known identifiers; they go before one that would teach that
        an identifier stands for another one.  any_subject: the subjects of applications need not agree.
        """
        exact = self.equal(frame, identifiers)
        yield from exact
        key = key_of(frame)
        others: Iterable[RecordedExchange] = self.exchanges.get(key, ())
        if any_subject:
            queues = [queue for (op, _), queue in self.exchanges.items() if op == key[0]]
            others = heapq.merge(*queues, key=lambda one: one.seq)
        others = (one for one in others if one not in exact)
        yield from itertools.islice(others, _NEXT)
        # A long way behind its turn, frames of one shape are worth a look before all others.
        shape, later = shape_of(frame), []
        for exchange in others:
            if exchange.shape is None:
                exchange.shape = shape_of(exchange.frame)
            if exchange.shape == shape:
                yield exchange
            else:
                later.append(exchange)
        yield from later

    def equal(self, frame: Frame, identifiers: IdentifierMap) -> Collection[RecordedExchange]:
        """Return the exchanges that are equal to a live frame as it is, or with the known identifiers."""
        op, subject, body = _kind(frame.op), frame.subject, frame.body
        found = self.exact.get(exact_key(op, subject, body))
        if found is not None or len(body) > _TRANSLATED:
            return found or ()
        inside = identifiers.knows(body)
        if inside or identifiers.knows(subject):
            subject = identifiers.to_recorded(subject)
            found = None if inside else self.exact.get(exact_key(op, subject, body))
            found = found or self.exact.get(exact_key(op, subject, identifiers.to_recorded(body)))
        return found or ()

    def inbox(self, subject: bytes) -> RecordedExchange | None:
        """Return the recorded subscription to an inbox."""
        known = self.exact.get(exact_key(Op.SUB, subject, b""), ())
        return next(
            (one for one in known if one.kind is FrameKind.INBOX and one.frame.subject == subject), None
        )

    def put(self, exchange: RecordedExchange) -> None:
        """Add an exchange behind the others, or back in its place among them."""
        self.exchanges.put(exchange.key, exchange)
        self.exact.put(exchange.exact, exchange)
        if exchange.kind is FrameKind.CHANGE:
            self.unused += 1
            # When a client acknowledges says nothing about its next request.
            if not exchange.frame.subject.startswith(b"$JS.ACK."):
                self._put_change(exchange)

    def _put_change(self, exchange: RecordedExchange) -> None:
        given_back = bool(self.changes) and next(reversed(self.changes)) > exchange.seq
        self.changes[exchange.seq] = exchange
        if given_back:
            self.changes = OrderedDict(sorted(self.changes.items()))

    def take(self, exchange: RecordedExchange) -> None:
        """Count an exchange as used."""
        self.exchanges.take(exchange.key, exchange)
        self.exact.take(exchange.exact, exchange)
        if exchange.kind is FrameKind.CHANGE:
            self.unused -= 1
            self.changes.pop(exchange.seq, None)

    def next_change(self) -> RecordedExchange | None:
        """Return the first CHANGE that has not happened; None when all have."""
        return next(iter(self.changes.values()), None)


def key_of(frame: Frame) -> Key:
    """Return the look-up key of a client frame: its kind and its subject without identifiers.

    PUB and HPUB are one kind: a header may be one that does not count.
    """
    return _kind(frame.op), masked(frame.subject)


def _kind(op: Op) -> Op:
    return Op.PUB if op is Op.HPUB else op


def exact_key(kind: Op, subject: bytes, body: bytes) -> int:
    """Return the look-up key of frames that are equal, but for their replies and headers."""
    return hash((kind, subject, body))


def shape_of(frame: Frame) -> int:
    """Return a number that is equal for frames which differ in generated values alone (nearly always)."""
    return hash((masked(frame.subject), _GENERATED.sub(b"*", frame.body[:_SHAPED])))


def queue_key(effect: Effect) -> QueueKey:
    """Return the key of the queue in which an effect keeps its order.

    The order counts on one subject of a subscription; in a consumer's delivery across all its subjects.
    """
    frame = effect.frame
    return END if frame is None else (frame.sid, b"" if effect.stream else frame.subject)


def standalone(frame: Frame) -> Frame:
    """Return a frame that keeps only its own bytes alive, not the whole read or record around it."""
    if len(frame.buffer) < 2 * (frame.end - frame.start) + OVERHEAD:  # a copy would save nothing
        return frame
    return frame.alone
