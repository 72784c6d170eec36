"""JetStream roles: the part of a frame in a conversation, by its subject, reply, status or body.

Theory
1. Most roles depend on the frame alone: one row has its direction, ops, patterns, the need and a predicate.
2. Some need history: a publish ack is a body on the reply inbox of an earlier PUB.  Such a row has
   `requests`, patterns of the PUBs that open it, and `unless`, patterns of those that do not; a connection
   with such a rule has `OpenRequests`, and the subjects of the rule are those of the PUB.
3. `OpenRequests` is bounded: beyond its limit the oldest open request is forgotten and its answer passes
   unselected.  An answer does not close it, since pull requests have many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final

from natsproxy.protocol.headers import build
from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.jetstream import AckKind, ack_kind, parse_ack, publish_ack
from natsproxy.protocol.subjects import matches
from natsproxy.rules.interface import View
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S, OPS, S2C, Direction, Op, op_mask

PUBS: Final = op_mask(*(spec.op for spec in OPS if spec.payload and spec.from_client))
MSGS: Final = op_mask(*(spec.op for spec in OPS if spec.payload and spec.from_server))
ACKS: Final = (b"$JS.ACK.>",)
API: Final = (b"$JS.API.>", b"$JS.*.API.>")
PULLS: Final = (b"$JS.API.CONSUMER.MSG.NEXT.>", b"$JS.*.API.CONSUMER.MSG.NEXT.>")


@dataclass(frozen=True, slots=True)
class Role:
    """One row: the conditions on a frame.

    text: for people.  patterns: of its subject, None for any.  need: the part of the frame that `matches`
    reads.  example: a frame with the role, for `rules explain`.  requests, unless: patterns of the PUBs whose
    answers it is about; None for roles without history.  by_status: no frame without a status has it.
    """

    name: str
    text: str
    direction: Direction
    ops: int
    patterns: tuple[bytes, ...] | None
    need: Need
    matches: Callable[[Frame], bool]
    example: bytes
    requests: tuple[bytes, ...] | None = None
    unless: tuple[bytes, ...] = ()
    by_status: bool = False

    @property
    def by_subject(self) -> bool:
        """True if op and subject alone decide."""
        return self.matches is _any and self.requests is None

    def admits(self, frame: Frame) -> bool:
        """Tell whether a frame of its ops and direction has the role."""
        return self.on_subject(frame.subject) and self.matches(frame)

    def on_subject(self, subject: bytes) -> bool:
        """Tell whether frames of a subject may have the role."""
        return self.patterns is None or any(matches(pattern, subject) for pattern in self.patterns)


def _body_is(*starts: bytes) -> Callable[[Frame], bool]:
    return lambda frame: frame.body.startswith(starts)


def _is_ack(frame: Frame) -> bool:
    return ack_kind(frame.body) is AckKind.ACK


def _status(code: int, description: bytes = b"") -> Callable[[Frame], bool]:
    def matches(frame: Frame) -> bool:
        # The first line only: a megabyte of others may follow.
        start, stop = frame.line_end, min(frame.end, frame.line_end + frame.header_size)
        end = frame.buffer.find(b"\n", start, stop) + 1
        found = parse_headers(frame.buffer[start : end or stop])
        return found.status == code and found.description.startswith(description)

    return matches


def _any(frame: Frame) -> bool:
    return True


def _is_delivery(frame: Frame) -> bool:
    return frame.reply.startswith(b"$JS.ACK.")


def _is_redelivery(frame: Frame) -> bool:
    ack = parse_ack(frame.reply)
    return ack is not None and ack.delivered > 1


def _is_publish_ack(frame: Frame) -> bool:
    return publish_ack(frame.body) is not None


_ACK: Final = b"$JS.ACK.ORDERS.worker.1.7.7.1700000000000000000.0"
_AGAIN: Final = b"$JS.ACK.ORDERS.worker.2.7.9.1700000000000000000.0"
_INBOX: Final = b"_INBOX.example"
_ROWS: Final = (
    Role(
        "ack",
        "an ack of a delivered message",
        C2S,
        PUBS,
        ACKS,
        Need.PAYLOAD,
        _is_ack,
        encode.pub(_ACK, b"+ACK"),
    ),
    Role(
        "nak", "a negative ack", C2S, PUBS, ACKS, Need.PAYLOAD, _body_is(b"-NAK"), encode.pub(_ACK, b"-NAK")
    ),
    Role(
        "term",
        "an ack that ends redelivery",
        C2S,
        PUBS,
        ACKS,
        Need.PAYLOAD,
        _body_is(b"+TERM"),
        encode.pub(_ACK, b"+TERM"),
    ),
    Role(
        "wpi", "work in progress", C2S, PUBS, ACKS, Need.PAYLOAD, _body_is(b"+WPI"), encode.pub(_ACK, b"+WPI")
    ),
    Role(
        "next",
        "an ack that pulls the next",
        C2S,
        PUBS,
        ACKS,
        Need.PAYLOAD,
        _body_is(b"+NXT"),
        encode.pub(_ACK, b"+NXT"),
    ),
    Role(
        "api",
        "a JetStream API call",
        C2S,
        PUBS,
        API,
        Need.LINE,
        _any,
        encode.pub(b"$JS.API.INFO", reply=_INBOX),
    ),
    Role(
        "pull",
        "a pull request",
        C2S,
        PUBS,
        PULLS,
        Need.LINE,
        _any,
        encode.pub(b"$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker", b"1", reply=_INBOX),
    ),
    Role(
        "flow-reply",
        "an answer to flow control",
        C2S,
        PUBS,
        (b"$JS.FC.>",),
        Need.LINE,
        _any,
        encode.pub(b"$JS.FC.ORDERS.worker.abcd"),
    ),
    Role(
        "delivery",
        "a message that wants an ack",
        S2C,
        MSGS,
        None,
        Need.LINE,
        _is_delivery,
        encode.msg(b"orders.new", b"1", reply=_ACK),
    ),
    Role(
        "redelivery",
        "a message delivered again",
        S2C,
        MSGS,
        None,
        Need.LINE,
        _is_redelivery,
        encode.msg(b"orders.new", b"1", reply=_AGAIN),
    ),
    Role(
        "heartbeat",
        "an idle heartbeat",
        S2C,
        op_mask(Op.HMSG),
        None,
        Need.HEADERS,
        _status(100, b"Idle"),
        encode.msg(_INBOX, b"1", headers=build((), code=b"100", description=b"Idle Heartbeat")),
        by_status=True,
    ),
    Role(
        "flow-control",
        "a flow control request",
        S2C,
        op_mask(Op.HMSG),
        None,
        Need.HEADERS,
        _status(100, b"Flow"),
        encode.msg(_INBOX, b"1", headers=build((), code=b"100", description=b"FlowControl Request")),
        by_status=True,
    ),
    Role(
        "no-responders",
        "a 503: no subscriber",
        S2C,
        op_mask(Op.HMSG),
        None,
        Need.HEADERS,
        _status(503),
        encode.msg(_INBOX, b"1", headers=build((), code=b"503")),
        by_status=True,
    ),
    Role(
        "publish-ack",
        "the ack of a publish; `subject` is that of the publish",
        S2C,
        MSGS,
        None,
        Need.PAYLOAD,
        _is_publish_ack,
        encode.msg(_INBOX, b"1", b'{"stream":"ORDERS","seq":7}'),
        requests=(b">",),
        unless=(b"$JS.>",),
    ),
    Role(
        "api-reply",
        "an answer of the JetStream API; `subject` is that of the call",
        S2C,
        MSGS,
        None,
        Need.LINE,
        _any,
        encode.msg(_INBOX, b"1", b'{"type":"io.nats.jetstream.api.v1.account_info_response"}'),
        requests=API,
    ),
    Role(
        "pull-reply",
        "an answer to a pull request; `subject` is that of the request",
        S2C,
        MSGS,
        None,
        Need.LINE,
        _any,
        encode.msg(b"orders.new", b"1", reply=_ACK),
        requests=PULLS,
    ),
)
TRANSLATION: Final = "translation"
"""The waiter that stands for rewriting the body of the answer."""
ROLES: Final[dict[str, Role]] = {role.name: role for role in _ROWS}


class OpenRequests:
    """The open requests of one connection: the waiters for answers, by reply subject.

    A waiter is a rule, or `TRANSLATION`; this class only compares them.  opened: the number of requests so
    far.
    """

    def __init__(self, limit: int = 4096) -> None:
        self.opened = 0
        self._limit = limit
        self._open: OrderedDict[bytes, tuple[bytes, frozenset[object]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reply: bytes, upstream: bytes, waiters: frozenset[object], need: Need, view: View) -> None:
        """Open a request, and watch for answers on `upstream`, the reply subject as the server knows it."""
        self.opened += 1
        # Clients reuse reply subjects: the earlier waiters stay, and the request becomes the newest again.
        _, before = self._open.pop(reply, (b"", frozenset()))
        self._open[reply] = (upstream, before | waiters)
        view.watch_subject(S2C, upstream, need)
        if len(self._open) > self._limit:
            _, (oldest, _) = self._open.popitem(last=False)
            view.unwatch_subject(S2C, oldest)

    def waiters(self, reply: bytes) -> frozenset[object]:
        """Return the waiters for answers on the client's reply subject."""
        return self._open[reply][1] if reply in self._open else frozenset()

    def keep(self, waiters: Set[object]) -> None:
        """Forget all waiters but these."""
        for reply, (upstream, known) in self._open.items():
            self._open[reply] = upstream, known & waiters

    def close(self, view: View) -> None:
        """Remove all watches."""
        for upstream, _ in self._open.values():
            view.unwatch_subject(S2C, upstream)
        self._open.clear()
