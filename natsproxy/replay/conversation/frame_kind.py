"""The kinds of client frames: those that ask and change nothing may come more or less often than recorded.

- READ: a request for information or for a stored message, and service discovery.
- PULL: a pull request.  It changes nothing as long as no message is there.
- INBOX: a subscription to an inbox, which belongs to the request that names the inbox.
- OPTIONAL: timing decides if a client sends it: UNSUB, answers to flow control, acks that say "in progress".

Every other frame is a CHANGE: publishes, answers, acks, subscriptions, and calls of the JetStream API that
change something.  A program must not leave one out (`is_required`).

`DeliveryRequest` is the meaning of a pull request, or of the creation of a push consumer with heartbeats: the
server sends statuses for it at times that the request itself sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple

from natsproxy.protocol.jetstream import (
    ACK_PREFIX,
    AckKind,
    ApiCall,
    ack_kind,
    members,
    number,
    parse_ack,
    parse_api,
    pull_request,
)
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.identifier_map import INBOX
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_READS: Final = frozenset(
    {
        b"INFO",
        b"STREAM.NAMES",
        b"STREAM.LIST",
        b"STREAM.INFO",
        b"STREAM.MSG.GET",
        b"DIRECT.GET",
        b"CONSUMER.NAMES",
        b"CONSUMER.LIST",
        b"CONSUMER.INFO",
    }
)
_DISCOVERY: Final = (b"$SRV.PING", b"$SRV.INFO", b"$SRV.STATS")
_FLOW_CONTROL: Final = b"$JS.FC."
_PULL: Final = b"CONSUMER.MSG.NEXT"
_CREATES: Final = (b"CONSUMER.CREATE", b"CONSUMER.DURABLE.CREATE")
Consumer = tuple[bytes, bytes]
"""Stream and consumer, under their recorded names."""


class Share(NamedTuple):
    """A pull consumer or a queue group: several clients may share it, each message is for one of them.

    of: the stream of the consumer, or the subject of the group, as recorded; name: of consumer or group.
    """

    kind: Literal["consumer", "queue group"]
    of: bytes
    name: bytes

    def __str__(self) -> str:
        return f"{self.kind} {self.name.decode(errors='replace')} of {self.of.decode(errors='replace')}"


class FrameKind(Enum):
    """The effect of a client frame on the server."""

    CHANGE = "change"
    READ = "read"
    PULL = "pull"
    INBOX = "inbox"
    OPTIONAL = "optional"


POLLS: Final = (FrameKind.READ, FrameKind.PULL)


def kind_of(frame: Frame, repeat: Sequence[bytes] = ()) -> FrameKind:
    """Return the kind of a client frame; publishes on the subjects of `repeat` are taken for reads."""
    subject = frame.subject
    if frame.op == Op.UNSUB or subject.startswith(_FLOW_CONTROL) or _is_progress(frame):
        return FrameKind.OPTIONAL
    if repeat and frame.op != Op.SUB and any(matches(pattern, subject) for pattern in repeat):
        return FrameKind.READ
    if not subject.startswith((b"$", INBOX)):
        return FrameKind.CHANGE
    if frame.op == Op.SUB:
        return FrameKind.INBOX if subject.startswith(INBOX) and not frame.queue else FrameKind.CHANGE
    if not frame.reply:
        return FrameKind.CHANGE
    if subject.startswith(_DISCOVERY):
        return FrameKind.READ
    call = parse_api(subject)
    if call is None:
        return FrameKind.CHANGE
    return (
        FrameKind.PULL if call.verb == _PULL else FrameKind.READ if call.verb in _READS else FrameKind.CHANGE
    )


def is_required(frame: Frame) -> bool:
    """Return whether a program that leaves a recorded frame out has changed (whatever `repeat` says)."""
    return kind_of(frame) is FrameKind.CHANGE


def _is_progress(frame: Frame) -> bool:
    """Return whether a frame asks for more time with a message, as a timer of the client does."""
    if frame.reply or not frame.subject.startswith(ACK_PREFIX):
        return False
    return ack_kind(frame.body) is AckKind.PROGRESS


class DeliveryRequest(NamedTuple):
    """A request that stands until it is fulfilled or its time is over.

    batch: the number of messages; None for a push consumer.  expires, heartbeat: in ns, 0 for none.
    deliver: the inbox that a push consumer delivers to.
    """

    consumer: Consumer
    batch: int | None
    expires: int = 0
    heartbeat: int = 0
    no_wait: bool = False
    deliver: bytes = b""


def delivery_request(frame: Frame) -> DeliveryRequest | None:
    """Return the meaning of a pull, or of the creation of a push consumer; None for any other frame."""
    if not frame.subject.startswith(b"$JS."):
        return None
    ack = parse_ack(frame.subject)
    if ack is not None:
        if not (frame.reply and frame.body.startswith(b"+NXT")):
            return None
        return _pull((ack.stream, ack.consumer), frame.body[4:].strip())
    call = parse_api(frame.subject)
    if call is None:
        return None
    if call.verb == _PULL:
        return _pull((call.stream, call.consumer), frame.body)
    return _push(call, frame.body) if call.verb in _CREATES else None


def share_of(frame: Frame, kind: FrameKind) -> Share | None:
    """Return what a recorded frame makes its client a member of."""
    if frame.op == Op.SUB:
        return Share("queue group", frame.subject, frame.queue) if frame.queue else None
    request = delivery_request(frame) if kind is FrameKind.PULL else None
    return None if request is None else Share("consumer", *request.consumer)


def _pull(consumer: Consumer, body: bytes) -> DeliveryRequest:
    pull = pull_request(body)
    return DeliveryRequest(consumer, pull.batch, pull.expires, pull.heartbeat, pull.no_wait)


def _push(call: ApiCall, body: bytes) -> DeliveryRequest | None:
    config = members(body).get("config")
    if not isinstance(config, dict) or not config.get("deliver_subject"):
        return None
    deliver = str(config["deliver_subject"]).encode()
    consumer = (call.stream, call.consumer)
    return DeliveryRequest(consumer, None, heartbeat=number(config, "idle_heartbeat"), deliver=deliver)


def starts_again(frame: Frame, stream: bytes) -> bool:
    """Return whether a client creates a consumer of a stream anew behind the messages that it has.

    Ordered consumers do that when their consumer is gone.
    """
    call = parse_api(frame.subject)
    return (
        call is not None
        and call.verb in _CREATES
        and call.stream == stream
        and b"opt_start_seq" in frame.body
    )
