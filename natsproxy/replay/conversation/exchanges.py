"""The values of a recording, and the index in which a live frame finds them.

An exchange is a client frame.  An effect is a server frame, or the end of a connection, that client frames
caused.  Neither changes while it is played, and all clients share them: what was used is noted elsewhere.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol.connect import Connect
from natsproxy.replay.conversation.causes import Timing
from natsproxy.replay.conversation.frame_kind import Consumer, FrameKind, Share
from natsproxy.replay.conversation.identifier_map import IdentifierMap, masked
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

OVERHEAD: Final = 512  # bytes counted for a frame's objects
_NEXT: Final = 16  # exchanges in whose order clients may be wrong without a cost
_SHAPED: Final = 4096  # bytes of a payload
_TRANSLATED: Final = 64 << 10  # bytes of a payload
_GENERATED: Final = re.compile(rb"[0-9A-Za-z_:+./-]{13,}")
K = TypeVar("K")
Key = tuple[Op, bytes]
QueueKey = tuple[bytes, bytes]
END: Final[QueueKey] = (b"", b"end")
"""The key of the queue that holds the end of a connection: no effect without a sid has this subject."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class RecordedExchange:
    """A recorded client frame.

    kind: see `frame_kind.py`.  key, content: see `key_of` and `content_key`.  shape: see `shape_of`, once it
    was needed.  size: bytes that it takes in the window.

    Its recorded answers are read later than itself, and tell (see `stored_messages.py`): reads, shows: the
    subject whose last message a READ is for, and the seq of the publish of the message that it got.  acked: a
    stream answered this publish.  unstored: the stream refused it, or had it already.
    """

    seq: int
    conn: ConnectionId
    t: int
    frame: Frame
    kind: FrameKind = FrameKind.CHANGE
    reads: bytes = b""
    shows: int | None = None
    acked: bool = False
    unstored: bool = False
    key: Key = field(init=False)
    content: int = field(init=False)
    size: int = field(init=False)
    shape: int | None = None

    def __post_init__(self) -> None:
        self.key = key_of(self.frame)
        self.content = content_key(self.key[0], self.frame.subject, self.frame.body)
        self.size = self.frame.wire_size + OVERHEAD


@dataclass(slots=True, eq=False)
class Effect:
    """A recorded server frame; frame is None for the end of the connection.

    causes: the seqs of the client frames that have to come before it.  offset: ns behind the last of them.
    delivery, pulled: see `Cause`.  copy_of: the publish that it forwards.  follows_poll: it answers a READ
    alone, or its connection ended behind a poll, so nobody misses it where that poll does not come.  queue:
    see `queue_key`.  size: bytes that it takes in the window.
    """

    seq: int
    conn: ConnectionId
    t: int
    frame: Frame | None
    timing: Timing
    causes: tuple[int, ...] = ()
    offset: int = 0
    delivery: bool = False
    pulled: Consumer | None = None
    copy_of: RecordedExchange | None = None
    follows_poll: bool = False
    queue: QueueKey = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.queue = queue_key(self.frame, delivery=self.delivery)
        self.size = 0 if self.frame is None else self.frame.wire_size + OVERHEAD


@dataclass(slots=True, eq=False)
class RecordedConnection:
    """A connection of the capture, as far as it was read.

    first_seq, last_seq: seq of its CONNECT and of its last client frame.  top_sid: the greatest sid.  shares:
    the pull consumers and queue groups that it takes messages from; groups: the latter by sid.
    """

    conn: ConnectionId
    connect: Connect | None = None
    first_seq: int = -1
    last_seq: int = -1
    top_sid: int = 0
    shares: BoundedDict[Share, None] = field(default_factory=BoundedDict)
    groups: BoundedDict[bytes, Share] = field(default_factory=BoundedDict)

    @property
    def name(self) -> str:
        """The client name of its CONNECT."""
        return self.connect.name if self.connect is not None else ""

    @property
    def label(self) -> str:
        """A phrase that names it."""
        number = f"recorded connection {self.conn}"
        return f"client {self.name!r} ({number})" if self.name else number


class _Queues(dict[K, deque[RecordedExchange]]):
    """Exchanges by a key, each deque in recorded order; none of them is empty."""

    def put(self, key: K, exchange: RecordedExchange) -> None:
        queue = self.setdefault(key, deque())
        queue.append(exchange)
        if len(queue) > 1 and queue[-2].seq > exchange.seq:
            self[key] = deque(sorted(queue, key=lambda other: other.seq))

    def remove(self, key: K, exchange: RecordedExchange) -> None:
        queue = self[key]
        if queue[0] is exchange:  # nearly always: clients repeat a conversation in its order
            queue.popleft()
        else:
            queue.remove(exchange)
        if not queue:
            del self[key]


class ExchangeIndex:
    """Exchanges by what a live frame that matches them may look like.

    by_key: by `key_of` their frame.  by_content: the same, by `content_key`.
    """

    def __init__(self) -> None:
        self.by_key: _Queues[Key] = _Queues()
        self.by_content: _Queues[int] = _Queues()

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def put(self, exchange: RecordedExchange) -> None:
        """Add an exchange behind the others, or back in its place among them."""
        self.by_key.put(exchange.key, exchange)
        self.by_content.put(exchange.content, exchange)

    def remove(self, exchange: RecordedExchange) -> None:
        """Take an exchange out."""
        self.by_key.remove(exchange.key, exchange)
        self.by_content.remove(exchange.content, exchange)

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
        others: Iterable[RecordedExchange] = self.by_key.get(key, ())
        if any_subject:
            queues = [queue for (op, _), queue in self.by_key.items() if op == key[0]]
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
        found = self.by_content.get(content_key(op, subject, body))
        if found is not None or len(body) > _TRANSLATED:
            return found or ()
        inside = identifiers.knows(body)
        if inside or identifiers.knows(subject):
            subject = identifiers.to_recorded(subject)
            found = None if inside else self.by_content.get(content_key(op, subject, body))
            found = found or self.by_content.get(content_key(op, subject, identifiers.to_recorded(body)))
        return found or ()

    def inbox(self, subject: bytes) -> RecordedExchange | None:
        """Return the recorded subscription to an inbox."""
        known = self.by_content.get(content_key(Op.SUB, subject, b""), ())
        return next(
            (one for one in known if one.kind is FrameKind.INBOX and one.frame.subject == subject), None
        )


def key_of(frame: Frame) -> Key:
    """Return the look-up key of a client frame: its kind and its subject without identifiers.

    PUB and HPUB are one kind: a header may be one that does not count.
    """
    return _kind(frame.op), masked(frame.subject)


def _kind(op: Op) -> Op:
    return Op.PUB if op is Op.HPUB else op


def content_key(kind: Op, subject: bytes, body: bytes) -> int:
    """Return the look-up key of frames that are equal, but for their replies and headers."""
    return hash((kind, subject, body))


def shape_of(frame: Frame) -> int:
    """Return a number that is equal for frames which differ in generated values alone (nearly always)."""
    return hash((masked(frame.subject), _GENERATED.sub(b"*", frame.body[:_SHAPED])))


def queue_key(frame: Frame | None, *, delivery: bool = False) -> QueueKey:
    """Return the key of the queue in which an effect keeps its order.

    The order counts on one subject of a subscription; in a consumer's delivery across all its subjects.
    """
    return END if frame is None else (frame.sid, b"" if delivery else frame.subject)


def standalone(frame: Frame) -> Frame:
    """Return a frame that keeps only its own bytes alive, not the whole read or record around it."""
    if len(frame.buffer) < 2 * (frame.end - frame.start) + OVERHEAD:  # a copy would save nothing
        return frame
    return frame.alone
