"""The check that a message is the same everywhere: where it was published, and at each of its recorders.

The memory of messages is shared by all recordings of a call.  Two frames show the same message if they have
the same place in a stream and the same time of storage, or the same subject and inbox as reply subject.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from natsproxy.bounded import BoundedDict
from natsproxy.check.base import Check
from natsproxy.check.history import DELIVERIES, PUBLISHES, History, MessageCopy, Moment, RecordedRequest
from natsproxy.protocol import headers
from natsproxy.protocol.identifiers import find_inbox
from natsproxy.protocol.jetstream import AckSubject
from natsproxy.units import MILLISECOND
from natsproxy.wire.ops import C2S

_SKEW: Final = 5 * MILLISECOND
"""Difference of the clocks of server and recorder up to which times of storage are believed."""
_REWRITTEN: Final = (b"Nats-Incr", b"Nats-Schedule", b"Nats-Msg-Size", b"Nats-Rollup-Source")
"""Headers of messages whose payload the server makes or leaves out."""


class ChangedPayloads(Check):
    """A payload that is not what was published, or not the same at two recorders.

    Only bodies are compared: servers add headers.
    """

    needs_payloads = True
    from_client = PUBLISHES
    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._messages = history.messages
        self._sent: BoundedDict[bytes, bytes] = BoundedDict()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        frame, request = moment.frame, moment.request
        if moment.direction == C2S:
            if moment.sent and moment.whole and frame.op in PUBLISHES:
                self._published(moment)
        elif request is not None and request.ack is not None and moment.sent and request.came == 1:
            self._stored(request, moment)
        elif moment.passed and moment.whole and frame.op in DELIVERIES and moment.status is None:
            self._delivered(moment, moment.ack)

    def _published(self, moment: Moment) -> None:
        frame = moment.frame
        if _is_own(frame.subject) or _is_rewritten(moment) or find_inbox(frame.reply) is None:
            return
        self._sent[frame.reply] = _digest(frame.body)
        self._asked(moment, published=True)

    def _stored(self, request: RecordedRequest, moment: Moment) -> None:
        ack, digest = request.ack, self._sent.pop(request.reply, None)
        if ack is None or ack.error is not None or ack.duplicate or digest is None or request.again:
            return
        first, last = (self.history.began + t for t in (request.t - _SKEW, moment.t + _SKEW))
        copy = MessageCopy(digest, request.proof, True, first, last)
        self._in_stream(ack.stream.encode(errors="replace"), ack.seq, request.subject, copy, moment)

    def _delivered(self, moment: Moment, ack: AckSubject | None) -> None:
        frame = moment.frame
        if _is_own(frame.subject) or _is_rewritten(moment):
            return
        if ack is not None:
            copy = MessageCopy(_digest(frame.body), moment.proof, False, ack.timestamp, ack.timestamp)
            self._in_stream(ack.stream, ack.stream_seq, frame.subject, copy, moment)
        elif find_inbox(frame.reply) is not None:
            self._asked(moment, published=False)

    def _in_stream(self, stream: bytes, seq: int, subject: bytes, copy: MessageCopy, moment: Moment) -> None:
        key = ("stored", stream, seq, subject)
        known = self._messages.get(key)
        if known is None or known.first > copy.last or copy.first > known.last:  # the stream was made anew
            self._messages[key] = copy
        elif known.digest != copy.digest:
            self._changed(subject, known, copy, moment)

    def _asked(self, moment: Moment, *, published: bool) -> None:
        frame = moment.frame
        key = ("asked", frame.subject, frame.reply)
        known, copy = self._messages.get(key), MessageCopy(_digest(frame.body), moment.proof, published)
        if known is None or (known.digest == copy.digest and published):
            self._messages[key] = copy
        elif not known.digest or known.digest == copy.digest:
            return
        elif known.published != published or known.proof.capture != copy.proof.capture:
            self._changed(frame.subject, known, copy, moment)
        else:  # an inbox for several requests
            self._messages[key] = copy._replace(digest=b"")

    def _changed(self, subject: bytes, known: MessageCopy, copy: MessageCopy, moment: Moment) -> None:
        name = subject.decode(errors="replace")
        text = f"{moment.conn.label}: the payload of a message on {name} was changed"
        if copy.proof.capture != known.proof.capture:
            text += " between two recorders"
        self.found(text, [known.proof, copy.proof], None, moment.conn)


def _is_own(subject: bytes) -> bool:
    """Tell whether a subject is one of JetStream's own, or an answer's."""
    return subject.startswith((b"$JS.", b"_INBOX."))


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


def _is_rewritten(moment: Moment) -> bool:
    """Tell whether the server makes the payload of a message."""
    block = moment.frame.headers
    return b"Nats-" in block and any(headers.get(block, name) is not None for name in _REWRITTEN)
