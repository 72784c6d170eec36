"""The causes of each frame that a client received: the partial order of a conversation.

`Causes` takes the steps of a capture in order.  `Causes.of(step)` names the client frames (by their seq) that
had to come before a server frame, and its timing:

- ANSWER: it follows as soon as its causes have happened.
- TIMED: the server's clock decides (redelivery after ack_wait, 409); it keeps its recorded distance.
- LIVE: a live request decides, now and not in the recording: heartbeats, flow control, the end of a pull
  request without messages.

The rules; the first that fits wins:
1. Any recorded connection published the same subject, reply and body: the message was forwarded.  Copies on
   one subscription are counted, so the n-th copy belongs to the n-th such publish since it was made.
2. A message with an ack subject (JetStream) has two causes: the publish with the same subject and body, if it
   was recorded, and the frame that requested it: the nak of that very message for a redelivery, else the pull
   request or the creation of its consumer.
3. A message on the reply subject of a request: answers, API responses, 503, the end of a pull request.
4. Any other frame: the last frame that this client sent before, polls (`frame_kind.py`) aside.

Every table is bounded, and keyed by hashes where keys are many; a forgotten entry makes rule 4 apply.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.listing.copies import Copies
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import AckSubject, StatusKind, parse_ack, status_kind
from natsproxy.replay.conversation.frame_kind import Consumer, FrameKind, delivery_request
from natsproxy.replay.conversation.steps import PUBLISHES, Step
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_ENDS_OF_PULLS: Final = {StatusKind.TIMEOUT, StatusKind.NOT_FOUND}
_LIVE_STATUSES: Final = {StatusKind.HEARTBEAT, StatusKind.FLOW_CONTROL}


class Timing(Enum):
    """The way in which an effect follows its causes."""

    ANSWER = "answer"
    TIMED = "timed"
    LIVE = "live"


class Cause(NamedTuple):
    """The causes of a server frame.

    after: seqs of client frames.  delivery: the frame belongs to a consumer's delivery, whose order counts
    across subjects (messages, and the statuses between them).  pulled: the consumer that a pull request asked
    for it.
    """

    after: tuple[int, ...]
    timing: Timing = Timing.ANSWER
    delivery: bool = False
    pulled: Consumer | None = None


class Causes:
    """Finds causes; it takes every step of a capture, in order."""

    def __init__(self) -> None:
        self._published = Copies()
        self._stored = Copies()
        self._requests: BoundedDict[bytes, int] = BoundedDict()
        self._consumers: BoundedDict[tuple[ConnectionId, Consumer], int] = BoundedDict()
        self._pulls_to: BoundedDict[tuple[ConnectionId, Consumer, bytes], int] = BoundedDict()
        self._pulls: BoundedDict[bytes, None] = BoundedDict()
        self._deliver: BoundedDict[bytes, int] = BoundedDict()
        self._naks: BoundedDict[tuple[bytes, bytes, int], tuple[int, bool]] = BoundedDict()
        self._subscribed: BoundedDict[tuple[ConnectionId, bytes], tuple[bytes, int]] = BoundedDict()
        self._last: BoundedDict[ConnectionId, int] = BoundedDict()

    # -- client frames

    def sent(self, step: Step, kind: FrameKind) -> None:
        """Note a SUB, PUB or HPUB."""
        frame = step.frame
        if kind is FrameKind.CHANGE:
            self._last[step.conn] = step.seq
        if frame.op == Op.SUB:
            self._subscribed[step.conn, frame.sid] = (frame.subject, step.seq)
        elif frame.op in PUBLISHES:
            self._note_publish(step, frame)

    def _note_publish(self, step: Step, frame: Frame) -> None:
        seq, body = step.seq, frame.body
        self._published.add(hash((frame.subject, frame.reply, body)), seq)
        self._stored.add(hash((frame.subject, body)), seq)
        if frame.reply:
            self._requests[frame.reply] = seq
        if not frame.subject.startswith(b"$JS."):
            return
        ack = parse_ack(frame.subject)
        if ack is not None and frame.body.startswith(b"-NAK"):
            # A nak with a delay (`-NAK {"delay": ...}`) makes the redelivery a matter of time.
            self._naks[ack.stream, ack.consumer, ack.stream_seq] = (seq, len(frame.body.strip()) > 4)
        request = delivery_request(frame)
        if request is None:
            return
        if request.batch is None:
            self._deliver[request.deliver] = seq
        else:
            self._consumers[step.conn, request.consumer] = seq
            self._pulls_to[step.conn, request.consumer, frame.reply] = seq
            self._pulls[frame.reply] = None

    # -- server frames

    def of(self, step: Step) -> Cause:
        """Return the cause of a server frame."""
        frame = step.frame
        last = self._last.get(step.conn)
        fallback = () if last is None else (last,)
        if frame.op not in (Op.MSG, Op.HMSG):
            return Cause(fallback)
        ack = parse_ack(frame.reply) if frame.reply else None
        if ack is not None:
            return self._delivery(step, ack, fallback)
        # Hashes instead of tuples, which would keep each body alive; a collision only shifts one cause.
        key = hash((frame.subject, frame.reply, frame.body))
        _, since = self._subscribed.get((step.conn, frame.sid), (b"", -1))
        seq = self._published.copy(key, (step.conn, frame.sid), since)
        if seq is not None:
            return Cause((seq,))
        status = _status(frame)
        request = self._requests.get(frame.subject)
        pulled = frame.subject in self._pulls
        if status in _LIVE_STATUSES or (pulled and status in _ENDS_OF_PULLS):
            return Cause((), Timing.LIVE)
        if request is None:
            return Cause(fallback)
        if status is StatusKind.CONFLICT:
            return Cause((request, *fallback), Timing.TIMED, True)
        return Cause((request,))

    def _delivery(self, step: Step, ack: AckSubject, fallback: tuple[int, ...]) -> Cause:
        frame = step.frame
        consumer = (ack.stream, ack.consumer)
        inbox, _ = self._subscribed.get((step.conn, frame.sid), (b"", -1))
        requested_by = self._consumers.get((step.conn, consumer))
        requested_by = self._pulls_to.get((step.conn, consumer, inbox), requested_by)
        pulled = None if requested_by is None else consumer
        if requested_by is None:  # a push consumer: its creation, found by the deliver subject, or the SUB
            subscribed = self._subscribed.get((step.conn, frame.sid))
            requested_by = None if subscribed is None else self._deliver.get(subscribed[0], subscribed[1])
        after = fallback if requested_by is None else (requested_by,)
        if ack.delivered > 1:  # without a nak it came because ack_wait ran out
            nak, delayed = self._naks.get((ack.stream, ack.consumer, ack.stream_seq), (None, True))
            timing = Timing.TIMED if delayed else Timing.ANSWER
            return Cause(after if nak is None else (nak, *after), timing, True, pulled)
        key = hash((frame.subject, frame.body))
        seq = self._stored.copy(key, (step.conn, frame.sid))
        return Cause(after if seq is None else (seq, *after), Timing.ANSWER, True, pulled)


def _status(frame: Frame) -> StatusKind | None:
    if not frame.header_size:
        return None
    block = headers.parse(frame.headers)
    return status_kind(block.code, block.description) if block.code else None
