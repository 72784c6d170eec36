"""Spans of recorded traffic: `Tracer` reads a recording and yields each span when it is over.

| span | kind | from | to | parent |
| --- | --- | --- | --- | --- |
| `request` | client | the request arrives | its answer is passed on | the context in its header |
| `publish` | producer | the message arrives | it goes on; with JetStream, its ack is passed on | the same |
| `process` | consumer | the message is passed on | the answer or the ack arrives | see below |
| `receive` | consumer | the message arrives | it is passed on | see below |

A message that waits for no answer and no ack is received, any other is processed.  Its parent is the span
that sent the message, where the recording tells which one that is for certain: by the reply subject of a
request, by account, stream, sequence and time of a stored message, or by a `traceparent` that was added on
the way.  Otherwise it is the span that its `traceparent` names, which the program made.  Without both, it
begins a trace.

Not shown: pull requests, heartbeats, answers and acks themselves, which end other spans, and frames without a
peer.  Ids follow from recorder, connection, frame and its time, so that another export has the same.

Names of attributes are those of OpenTelemetry's conventions for messaging; those of natsproxy begin with
`nats.`.  Payloads and headers are in none of them.  Every table is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Final

from natsproxy.bounded import LIMIT, BoundedDict, K
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Item
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.segment import BlockRef
from natsproxy.check.history import DELIVERIES, PUBLISHES, ClientConnection, History, Moment
from natsproxy.check.requests import asks
from natsproxy.protocol.identifiers import find_inbox
from natsproxy.protocol.jetstream import AckKind, ApiCall, ack_kind, api_error
from natsproxy.protocol.template import template
from natsproxy.protocol.traceparent import SPAN_BYTES, TRACE_BYTES, SpanContext, context_of
from natsproxy.units import MINUTE, SECOND
from natsproxy.wire.ops import C2S, Direction, Op

CLIENT: Final = "client"
PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
LONGEST: Final = 5 * MINUTE
"""A request or a delivery that is open for longer counts as without an answer."""
Attribute = str | int | bool
SKEW: Final = 5 * SECOND
"""Between the clocks of the server, which says when a message was stored, and of the recording."""
_Stored = tuple[str, str, int, bytes]
"""Account, stream, sequence and subject of a stored message."""


@dataclass(slots=True)
class Span:
    """A span.

    parent: of the same trace; None for its root.  start, end: Unix ns.  error: its type and a sentence, None
    where nothing went wrong.  conn, direction, op, subject: of its message.
    """

    context: SpanContext
    parent: SpanContext | None
    kind: str
    operation: str
    conn: ClientConnection
    direction: Direction
    op: Op
    subject: bytes
    start: int
    end: int
    attributes: dict[str, Attribute] = field(default_factory=dict)
    error: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """The name, which is the same for all spans of a subject's template."""
        return f"{self.operation} {_text(template(self.subject))}"


@dataclass(slots=True)
class _Open:
    """A span that is not over.

    since: time in the recording (ns).  stored: the message that it delivers.  at: Unix ns of its storage.
    """

    span: Span
    since: int
    stored: _Stored | None = None
    at: int = 0


class Tracer:
    """Makes the spans of one recording whose messages match a query.  name: of the recording."""

    def __init__(self, name: str, query: Query) -> None:
        self._history = History(name, BoundedDict())
        self._query = query
        self._requests: BoundedDict[bytes, _Open] = BoundedDict()
        self._deliveries: BoundedDict[tuple[ConnectionId, bytes], _Open] = BoundedDict()
        self._asked: BoundedDict[bytes, SpanContext] = BoundedDict()
        self._stored: BoundedDict[_Stored, Span] = BoundedDict()
        self._deleted: BoundedDict[tuple[str, str], int] = BoundedDict()
        """Unix ns at which a client last deleted each stream of an account: sequences begin anew."""
        self._stopped: BoundedDict[tuple[ConnectionId, int], _Open] = BoundedDict()
        """Publishes that did not go on, by ordinal: others may later, in their places."""

    def read(self, items: Iterable[tuple[BlockRef, Item]]) -> Iterator[Span]:
        """Yield the spans that are over with the next items of the recording."""
        for moment in self._history.moments(items):
            yield from filter(self._wants, self._saw(moment))

    def at_end(self) -> Iterator[Span]:
        """Yield those that are left at its end, but for requests that may be answered still."""
        yield from filter(self._wants, self._left())

    def _wants(self, span: Span) -> bool:
        return self._query.wants_message(span.conn.id, span.direction, span.start, span.op, span.subject)

    def _saw(self, moment: Moment) -> Iterator[Span]:
        yield from self._overdue(moment.t)
        if moment.direction == C2S:
            yield from self._of_client(moment)
        elif moment.frame.op in DELIVERIES and moment.passed:
            yield from self._of_server(moment)

    def _left(self) -> Iterator[Span]:
        yield from self._dropped(_taken(self._stopped))
        for delivery in _taken(self._deliveries):
            yield self._found(delivery)
        for request in _taken(self._requests):
            until = self._history.until(request.span.conn)
            if until - request.since >= self._history.patience.answer:
                yield self._unanswered(request, until)

    # -- publishes

    def _of_client(self, moment: Moment) -> Iterator[Span]:
        conn, frame = moment.conn, moment.frame
        if not moment.sent and moment.of is not None:
            replaced = self._stopped.pop((conn.id, moment.of), None)
            if replaced is not None:
                yield from self._went_on(replaced.span, moment)
        if frame.op not in PUBLISHES or not moment.sent:
            return
        handled = self._deliveries.get((conn.id, frame.subject))
        if handled is not None:
            yield from self._handled(handled, moment)
        elif moment.ack is None and not frame.subject.startswith(b"$JS.FC."):
            yield from self._published(moment)

    def _published(self, moment: Moment) -> Iterator[Span]:
        frame, asking = moment.frame, asks(moment)
        call = None if moment.request is None else moment.request.call
        if not asking and frame.reply and call is not None:
            return  # a pull
        if call is not None and call.verb == b"STREAM.DELETE":
            self._deleted[moment.conn.account, _text(call.stream)] = self._history.began + moment.t
        header = context_of(frame.headers)
        span = self._span(moment, CLIENT if asking else PRODUCER, "request" if asking else "publish", header)
        if asking:
            self._requests[frame.reply] = _Open(span, moment.t)
        if moment.left is None:
            assert moment.ordinal is not None
            if len(self._stopped) >= LIMIT:
                yield from self._dropped(islice(_taken(self._stopped), 1))
            self._stopped[moment.conn.id, moment.ordinal] = _Open(span, moment.t)
        elif not asking:
            span.end = self._history.began + moment.left
            yield span
        if moment.left is not None:
            self._remember(moment, span)

    def _remember(self, moment: Moment, span: Span) -> None:
        """Remember the sender of a message by its reply subject, if that stands for no other message."""
        request = moment.request
        if request is not None and not request.again:
            self._asked[request.reply] = span.context
        elif request is not None:
            self._asked.pop(request.reply, None)

    def _went_on(self, span: Span, moment: Moment) -> Iterator[Span]:
        """Take the message that went on in place of a publish, with another subject or headers perhaps."""
        header, frame = context_of(moment.frame.headers), moment.frame
        if moment.cause:
            span.attributes["nats.rule"] = moment.cause
        if header is not None and header.trace != span.context.trace:
            span.context, span.parent = header, None  # it was added, for this span
        if frame.subject != span.subject:
            span.attributes["nats.subject_sent"] = _text(frame.subject)
        self._remember(moment, span)
        if span.kind != CLIENT:
            span.end = self._history.began + moment.t
            yield span

    def _dropped(self, stopped: Iterable[_Open]) -> Iterator[Span]:
        """Yield publishes that did not go on, and nothing did in their places."""
        for publish in stopped:
            span = publish.span
            span.error = "dropped", "it did not go on to the server"
            if span.kind != CLIENT:  # a request ends with its answer, which a rule may give
                yield span

    # -- deliveries

    def _of_server(self, moment: Moment) -> Iterator[Span]:
        frame = moment.frame
        if moment.request is not None and moment.ack is None:
            yield from self._answered(moment)
            return
        if moment.status is not None or (moment.ack is None and find_inbox(frame.subject) is not None):
            return  # a heartbeat, the end of a pull, a further answer
        parent, stored = self._sender(moment)
        expects = bool(frame.reply)
        span = self._span(moment, CONSUMER, "process" if expects else "receive", parent)
        if moment.sub is not None and moment.sub.queue:
            span.attributes["messaging.consumer.group.name"] = _text(moment.sub.queue)
        if moment.ack is not None:
            span.attributes |= {
                "nats.stream": _text(moment.ack.stream),
                "nats.stream_sequence": moment.ack.stream_seq,
                "nats.consumer": _text(moment.ack.consumer),
                "nats.delivered": moment.ack.delivered,
            }
        assert moment.left is not None
        span.end = self._history.began + moment.left
        if not expects:
            yield span
            return
        span.start = span.end
        key = moment.conn.id, frame.reply
        before = self._deliveries.pop(key, None)
        if before is not None:
            yield self._found(before)
        elif len(self._deliveries) >= LIMIT:  # the acks of many consumers never come
            yield from map(self._found, islice(_taken(self._deliveries), 1))
        self._deliveries[key] = _Open(
            span, moment.t, stored, 0 if moment.ack is None else moment.ack.timestamp
        )

    def _sender(self, moment: Moment) -> tuple[SpanContext | None, _Stored | None]:
        """Return the span that sent a message, and the stored message that it is."""
        frame, header = moment.frame, context_of(moment.frame.headers)
        if moment.ack is not None:
            stream = _text(moment.ack.stream)
            return header, (moment.conn.account, stream, moment.ack.stream_seq, frame.subject)
        asked = self._asked.get(frame.reply) if frame.reply else None
        if asked is not None and (header is None or header.trace == asked.trace):
            return asked, None
        return header, None

    def _handled(self, delivery: _Open, moment: Moment) -> Iterator[Span]:
        """End a delivery with its answer, or its ack."""
        span = delivery.span
        if delivery.stored is not None:
            kind = ack_kind(moment.frame.body) if moment.whole else None
            if kind is AckKind.PROGRESS:
                return
            if kind is not None:
                span.attributes["nats.ack"] = kind.value
            if kind in (AckKind.NAK, AckKind.TERM):
                span.error = kind.value, "the consumer did not accept the message"
        del self._deliveries[moment.conn.id, moment.frame.subject]
        span.end = self._history.began + moment.t
        yield self._found(delivery)

    def _found(self, delivery: _Open) -> Span:
        """Return the span of a delivery, below the one that stored its message if that is known by now."""
        span = delivery.span
        publish = None if delivery.stored is None else self._stored.get(delivery.stored)
        if publish is None or not self._is_of(publish, delivery):
            return span
        if span.parent is None or span.parent.trace == publish.context.trace:
            span.parent = publish.context
            span.context = span.context._replace(trace=publish.context.trace)
        return span

    def _is_of(self, publish: Span, delivery: _Open) -> bool:
        """Tell whether a delivery is of what a publish stored, not of a message in another stream."""
        assert delivery.stored is not None
        deleted = self._deleted.get(delivery.stored[:2])
        if deleted is not None and publish.start <= deleted <= delivery.span.start:
            return False
        return publish.start - SKEW <= delivery.at <= publish.end + SKEW

    # -- answers

    def _answered(self, moment: Moment) -> Iterator[Span]:
        request = self._requests.get(moment.frame.subject)
        if request is None or moment.left is None:
            return
        span = request.span
        if span.conn is not moment.conn and span.conn.until is None:
            return  # the copy of an observer
        del self._requests[moment.frame.subject]
        span.end, span.error = self._history.began + moment.left, None
        ack = moment.request.ack if moment.request is not None else None
        if moment.status is not None:
            span.error = moment.status.value, f"the answer is a status: {moment.status.value}"
        elif ack is not None:
            span.kind, span.operation = PRODUCER, "publish"
            span.attributes["messaging.operation.name"] = "publish"
            if ack.error is not None:
                span.error = str(ack.error.err_code or ack.error.code), ack.error.description
            else:
                span.attributes |= {"nats.stream": ack.stream, "nats.stream_sequence": ack.seq}
                if not ack.duplicate:
                    self._stored[moment.conn.account, ack.stream, ack.seq, span.subject] = span
        elif moment.whole and moment.request is not None and _tells_errors(moment.request.call):
            error = api_error(moment.frame.body)
            if error is not None:
                span.error = str(error.err_code or error.code), error.description
        yield span

    def _unanswered(self, request: _Open, until: int) -> Span:
        span = request.span
        span.end = self._history.began + until
        span.error = span.error or ("timeout", "it had no answer")
        return span

    def _overdue(self, now: int) -> Iterator[Span]:
        """Yield what is open for too long."""
        yield from self._dropped(_taken(self._stopped, now - LONGEST))
        for delivery in _taken(self._deliveries, now - LONGEST):
            yield self._found(delivery)
        for request in _taken(self._requests, now - LONGEST):
            yield self._unanswered(request, now)

    # -- spans

    def _span(self, moment: Moment, kind: str, operation: str, parent: SpanContext | None) -> Span:
        frame, conn, sent = moment.frame, moment.conn, moment.sent
        start = self._history.began + moment.t
        place = conn.id.recorder, conn.id.number, moment.direction, sent, moment.ordinal or 0, start
        ids = blake2b(b"%s%d.%d.%d.%d.%d" % place).digest()
        trace = ids[:TRACE_BYTES] if parent is None else parent.trace
        attributes: dict[str, Attribute] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": "send" if moment.direction == C2S else operation,
            "messaging.destination.name": _text(frame.subject),
            "messaging.message.body.size": frame.size - frame.header_size,
            "nats.connection": str(conn.id),
        }
        shape = template(frame.subject)
        if shape != frame.subject:
            attributes["messaging.destination.template"] = _text(shape)
        if conn.connect.name:
            attributes["messaging.client.id"] = conn.connect.name
        if conn.account:
            attributes["nats.account"] = conn.account
        if moment.cause:
            attributes["nats.rule"] = moment.cause
        context = SpanContext(trace, ids[TRACE_BYTES : TRACE_BYTES + SPAN_BYTES])
        return Span(
            context,
            parent,
            kind,
            operation,
            conn,
            moment.direction,
            frame.op,
            frame.subject,
            start,
            start,
            attributes,
        )


def _taken(table: BoundedDict[K, _Open], before: int | None = None) -> Iterator[_Open]:
    """Take spans out of a table, the oldest first; before: only those from before a time."""
    while table:
        key, first = next(iter(table.items()))
        if before is not None and first.since >= before:
            return
        del table[key]
        yield first


def _tells_errors(call: ApiCall | None) -> bool:
    """Tell whether an error of a call is in the body of its answer, which is not a message of a stream."""
    return call is not None and call.verb != b"DIRECT.GET"


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
