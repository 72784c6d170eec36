"""The publishes whose messages reads of a stream show.

The answer to a read by subject has the sequence of the message that it shows, and so has the publish ack of
that message: a recorded read belongs to one recorded publish.
"""

from __future__ import annotations

from natsproxy.bounded import BoundedDict
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import members, parse_api, publish_ack
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.wire.frames import Frame


class StoredMessages:
    """Learns from recorded answers which publish a read shows, and notes it in the exchanges."""

    def __init__(self) -> None:
        self._stored: BoundedDict[tuple[bytes, int], int] = BoundedDict()  # stream and sequence -> seq

    def answered(self, exchange: RecordedExchange, answer: Frame) -> None:
        """Note a recorded answer to a request."""
        if exchange.kind is FrameKind.READ:
            exchange.reads, stream = _subject_read(exchange.frame)
            exchange.shows = self._stored.get((stream, _sequence(answer))) if exchange.reads else None
        elif exchange.kind is FrameKind.CHANGE and b'"seq"' in answer.body:
            ack = publish_ack(answer.body)
            exchange.acked = ack is not None
            exchange.unstored = ack is not None and bool(ack.error or ack.duplicate)
            if ack is not None and not exchange.unstored:
                self._stored[ack.stream.encode(), ack.seq] = exchange.seq


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
