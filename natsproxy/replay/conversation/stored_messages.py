"""The last messages of subjects that clients write to streams and read back.

The answer to a read by subject has the sequence of the message that it shows, and so has the publish ack of
that message: a recorded read belongs to one recorded publish.  It answers a live read rightly while that
publish is the last one that was made on the subject, whatever other clients and tasks have or have not done.
"""

from __future__ import annotations

from natsproxy.bounded import BoundedDict
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import members, parse_api, publish_ack
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.identifier_map import INBOX
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class StoredMessages:
    """Learns from recorded answers which publish a read shows, and follows the live publishes."""

    def __init__(self) -> None:
        self._stored: BoundedDict[tuple[bytes, int], int] = BoundedDict()  # stream and sequence -> seq
        self._not_stored: BoundedDict[int, None] = BoundedDict()
        self._last: BoundedDict[bytes, int] = BoundedDict()

    def answered(self, exchange: RecordedExchange, answer: Frame) -> None:
        """Note a recorded answer to a request."""
        if exchange.kind is FrameKind.READ:
            exchange.reads, stream = _subject_read(exchange.frame)
            exchange.shows = self._stored.get((stream, _sequence(answer))) if exchange.reads else None
        elif exchange.kind is FrameKind.CHANGE and b'"seq"' in answer.body:
            ack = publish_ack(answer.body)
            exchange.acked = ack is not None
            if ack is not None and not (ack.error or ack.duplicate):
                self._stored[ack.stream.encode(), ack.seq] = exchange.seq
            elif ack is not None:
                self._not_stored[exchange.seq] = None

    def happened(self, exchange: RecordedExchange) -> None:
        """Note that a recorded frame has happened live."""
        frame = exchange.frame
        if (
            exchange.kind is FrameKind.CHANGE
            and frame.op is not Op.SUB
            and not frame.subject.startswith((b"$JS.", INBOX))
            and exchange.seq not in self._not_stored
        ):
            self._last[frame.subject] = exchange.seq

    def is_due(self, read: RecordedExchange) -> bool | None:
        """Tell whether the answer to a recorded read is right now; None where the writes do not tell."""
        last = self._last.get(read.reads)
        if last is None:
            return None
        return True if last == read.shows else None if last < read.seq else False


def _subject_read(frame: Frame) -> tuple[bytes, bytes]:
    """Return the subject whose last message a request is for, `b""` without one, and the stream."""
    call = parse_api(frame.subject)
    if call is None or call.verb not in (b"STREAM.MSG.GET", b"DIRECT.GET"):
        return b"", b""
    return call.filter or str(members(frame.body).get("last_by_subj", "")).encode(), call.stream


def _sequence(answer: Frame) -> int:
    """Return the sequence of the message in the answer to a read, 0 for none."""
    if answer.header_size:
        text = headers.get(answer.headers, b"Nats-Sequence") or b""
        return int(text) if text.isdigit() and len(text) < 20 else 0
    message = members(answer.body).get("message")
    found = message.get("seq") if isinstance(message, dict) else None
    return found if type(found) is int else 0
