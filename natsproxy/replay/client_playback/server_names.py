"""Names that the server made, recorded and live: consumers and ack subjects.

A consumer that the server named is called differently in each run; its recorded and its live name are in the
two answers to its creation, which arrive on the same inbox.  A delivery is known by stream, consumer, stream
sequence and delivery count; its live ack subject takes the place of the recorded one.
"""

from __future__ import annotations

import json

from natsproxy.bounded import BoundedDict
from natsproxy.protocol.jetstream import parse_ack, parse_api
from natsproxy.wire.frames import Frame

_CREATES = (b"CONSUMER.CREATE", b"CONSUMER.DURABLE.CREATE")


class ServerNames:
    """The server's names in one replay; every table is bounded."""

    def __init__(self) -> None:
        self._names: BoundedDict[tuple[bytes, bytes], bytes] = BoundedDict()
        self._creations: BoundedDict[bytes, tuple[bytes, bytes, bytes]] = BoundedDict()
        self._acks: BoundedDict[tuple[bytes, bytes, int, int], bytes] = BoundedDict()

    def requested(self, frame: Frame) -> None:
        """Note a recorded request that creates a consumer."""
        call = parse_api(frame.subject) if frame.reply else None
        if call is not None and call.verb in _CREATES:
            self._creations[frame.reply] = (call.stream, b"", b"")

    def answered(self, frame: Frame, *, live: bool) -> None:
        """Note a message from the server, recorded or live."""
        if live and frame.reply.startswith(b"$JS.ACK."):
            ack = parse_ack(frame.reply)
            if ack is not None:
                self._acks[ack.stream, ack.consumer, ack.stream_seq, ack.delivered] = frame.reply
        if frame.subject not in self._creations:
            return
        try:
            name = str(json.loads(frame.body).get("name", "")).encode()
        except (ValueError, AttributeError):
            return
        stream, recorded, found = self._creations[frame.subject]
        recorded, found = (recorded, name) if live else (name, found)
        self._creations[frame.subject] = (stream, recorded, found)
        if recorded and found and recorded != found:
            self._names[stream, recorded] = found

    def ack(self, subject: bytes) -> bytes | None:
        """Return the live ack subject for a recorded one, None before its delivery came."""
        ack = parse_ack(subject)
        if ack is None:
            return subject
        # The sequence in the consumer and the times differ in each run, so they are no part of the key.
        consumer = self._names.get((ack.stream, ack.consumer), ack.consumer)
        return self._acks.get((ack.stream, consumer, ack.stream_seq, ack.delivered))

    def to_live(self, subject: bytes) -> bytes:
        """Return a recorded `$JS` subject with the live names in it."""
        if subject.startswith(b"$JS.ACK."):
            return self.ack(subject) or subject
        call = parse_api(subject)
        if call is None or not call.consumer:
            return subject
        name = self._names.get((call.stream, call.consumer))
        if name is None:
            return subject
        tokens = subject.split(b".")
        tokens[call.start + 1] = name
        return b".".join(tokens)
