"""Checks of JetStream consumers: ordered ones, acks, pull requests, flow control."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from natsproxy import close_reasons
from natsproxy.check.base import Check
from natsproxy.check.history import DELIVERIES, PUBLISHES, ClientConnection, Consumer, History, Moment, Table
from natsproxy.check.statement import ProofFrame
from natsproxy.protocol import headers
from natsproxy.protocol.identifiers import split_nuid
from natsproxy.protocol.jetstream import (
    AckKind,
    AckSubject,
    StatusKind,
    ack_kind,
    members,
    number,
    pull_request,
)
from natsproxy.protocol.subjects import matches
from natsproxy.units import SECOND, short_duration
from natsproxy.wire.ops import C2S, Op

ACK_WAIT: Final = 30 * SECOND
"""The default of nats-server."""
_CREATE: Final = b"CONSUMER.CREATE"
_BETWEEN: Final = (StatusKind.HEARTBEAT, StatusKind.FLOW_CONTROL)
"""Statuses that end no pull."""
_HELD: Final = 1000
"""Deliveries without ack that are remembered per consumer and connection: the default of max_ack_pending."""


def named(consumer: Consumer) -> str:
    """Return stream and consumer for sentences."""
    return "/".join(part.decode(errors="replace") for part in consumer)


@dataclass(slots=True)
class _Ordered:
    """An ordered consumer, as its client sees it.

    deliver: the subject that it delivers to; b"" of a pull consumer.  filters: as configured.
    consumer_seq, stream_seq, last: of the last message in order.  lost: a message that did not go on to the
    client.  broken: the sentence about a frame that is not the next one, and that frame.
    """

    name: bytes
    deliver: bytes
    filters: object
    proof: ProofFrame
    consumer_seq: int = 0
    stream_seq: int = 0
    last: ProofFrame | None = None
    lost: ProofFrame | None = None
    broken: tuple[str, ProofFrame] | None = None


class OrderedGaps(Check):
    """Gaps in what an ordered consumer gives to its client, after which the client goes on.

    A client that sees one starts again, with a new consumer.  Then nothing is wrong, as long as that begins
    right behind the last message in order.  A consumer replaces another one if the library gave both the same
    generated name with another number, or if the other one of the same filter had a gap.
    """

    needs_payloads = True
    from_client = PUBLISHES
    from_server = DELIVERIES

    repetitions = False

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._streams: Table[tuple[ClientConnection, bytes], list[_Ordered]] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        request = moment.request
        if moment.direction == C2S:
            if request is None or request.call is None or not (moment.sent and moment.whole):
                return
            if request.call.verb == _CREATE:
                self._created(moment, request.call.stream, request.call.consumer)
        elif moment.ack is not None:
            self._delivered(moment, moment.ack)
        elif moment.status is StatusKind.HEARTBEAT and moment.passed and not self.repetitions:
            self._heartbeat(moment)

    def _created(self, moment: Moment, stream: bytes, name: bytes) -> None:
        config = members(moment.frame.body).get("config")
        if not isinstance(config, dict) or not _is_ordered(config):
            return
        deliver = str(config.get("deliver_subject") or "").encode(errors="replace")
        filters = config.get("filter_subjects") or config.get("filter_subject")
        new = _Ordered(
            name or str(config.get("name") or "").encode(errors="replace"), deliver, filters, moment.proof
        )
        known = self._streams.setdefault((moment.conn, stream), [])
        old = _replaced(known, new)
        start = number(config, "opt_start_seq")
        if old is not None:
            known.remove(old)
            want = old.stream_seq + 1
            if start and old.stream_seq and ((start < want) if self.repetitions else (start > want)):
                text = f"starts again at {start} after message {old.stream_seq}"
                self._say(
                    moment.conn, stream, text, [old.last, old.lost, old.broken and old.broken[1], new.proof]
                )
            new.stream_seq, new.last = max(0, start - 1), old.last
        known.append(new)
        if len(known) > _HELD:
            del known[0]

    def _delivered(self, moment: Moment, ack: AckSubject) -> None:
        subject = b"" if moment.sub is None else moment.sub.subject
        known = self._streams.get((moment.conn, ack.stream), [])
        one = next((one for one in known if ack.consumer == one.name or subject == one.deliver), None)
        if one is None or one.broken is not None:
            return
        want = one.consumer_seq + 1
        if not moment.passed:
            one.lost = moment.proof
        elif ack.consumer_seq == want:
            one.consumer_seq, one.stream_seq, one.last = want, ack.stream_seq, moment.proof
        elif (ack.consumer_seq < want) == self.repetitions:
            what = "repeats" if self.repetitions else "goes on with"
            text = f"{what} message {ack.consumer_seq} after {one.consumer_seq}, and does not start again"
            one.broken = (text, moment.proof)

    def _heartbeat(self, moment: Moment) -> None:
        """Compare a push consumer's last message with the last one that the client got."""
        text = headers.get(moment.frame.headers, b"Nats-Last-Consumer") or b""
        last = int(text) if text.isdigit() and len(text) < 20 else 0
        for (conn, _), known in self._streams.items():
            for one in known if conn is moment.conn and moment.sub is not None else ():
                if one.deliver == moment.frame.subject and last > one.consumer_seq and one.broken is None:
                    said = f"is at message {last} after {one.consumer_seq}, and does not start again"
                    one.broken = (said, moment.proof)

    def at_end(self) -> None:
        """Judge what is still open."""
        for (conn, stream), known in self._streams.items():
            for one in known:
                if one.broken is None or (one.deliver and not any(conn.live(one.deliver))):
                    continue
                if self.waited(conn, one.broken[1].t, self.history.patience.grace):
                    self._say(conn, stream, one.broken[0], [one.proof, one.last, one.lost, one.broken[1]])

    def _say(self, conn: ClientConnection, stream: bytes, text: str, frames: list[ProofFrame | None]) -> None:
        since = min(frame.t for frame in frames if frame is not None)
        name = stream.decode(errors="replace")
        self.found(f"{conn.label}: an ordered consumer of {name} {text}", frames, since, conn)


class OrderedRepetitions(OrderedGaps):
    """Messages that an ordered consumer gives to its client twice."""

    repetitions = True


def _replaced(known: list[_Ordered], new: _Ordered) -> _Ordered | None:
    """Return the consumer that a new one replaces."""
    chain = _chain(new.name)
    if chain:
        return next((one for one in known if _chain(one.name) == chain), None)
    broken = [one for one in known if one.broken is not None and one.filters == new.filters]
    return broken[0] if len(broken) == 1 else None


def _chain(name: bytes) -> bytes:
    """Return the part of a generated name that stays when an ordered consumer starts again."""
    found = split_nuid(name)
    return found[0] + found[1] if found is not None and found[2].startswith(b"_") else b""


def _is_ordered(config: dict[str, Any]) -> bool:
    """Tell whether a consumer is configured as the libraries configure ordered ones."""
    return (
        config.get("ack_policy") == "none"
        and config.get("mem_storage") is True
        and config.get("num_replicas") == 1
        and not config.get("durable_name")
    )


class UnackedDeliveries(Check):
    """Deliveries that nobody ever acked (nor refused), though their client acked later ones.

    The time of ack_wait has gone by, too, without a redelivery, or the client has left.
    """

    from_client = PUBLISHES
    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._held: Table[tuple[ClientConnection, Consumer], OrderedDict[int, ProofFrame]] = Table()
        self._passed_by: Table[tuple[ClientConnection, Consumer, int], tuple[ProofFrame, ProofFrame]] = (
            Table()
        )
        self._to: Table[tuple[Consumer, int], list[ClientConnection]] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        ack = moment.ack
        if ack is None:
            return
        consumer = (ack.stream, ack.consumer)
        if moment.direction == C2S:
            if moment.sent and not (moment.whole and ack_kind(moment.frame.body) is AckKind.PROGRESS):
                self._acked(moment, consumer, ack)
        elif moment.passed:
            self._delivered(moment, consumer, ack)

    def _delivered(self, moment: Moment, consumer: Consumer, ack: AckSubject) -> None:
        config = self.history.consumers.get(consumer)
        if config is not None and config.get("ack_policy") in ("none", "all"):
            return
        held = self._held.setdefault((moment.conn, consumer), OrderedDict())
        held.pop(ack.stream_seq, None)
        held[ack.stream_seq] = moment.proof
        self._passed_by.pop((moment.conn, consumer, ack.stream_seq), None)
        to = self._to.setdefault((consumer, ack.stream_seq), [])
        if moment.conn not in to:
            to.append(moment.conn)
        if len(held) > _HELD:
            seq, _ = held.popitem(last=False)
            self._to.pop((consumer, seq), None)

    def _acked(self, moment: Moment, consumer: Consumer, ack: AckSubject) -> None:
        own = self._held.get((moment.conn, consumer), OrderedDict())
        if ack.stream_seq in own:
            earlier = takewhile(lambda one: one[0] != ack.stream_seq, own.items())
            for seq, proof in list(earlier):
                self._passed_by.setdefault((moment.conn, consumer, seq), (proof, moment.proof))
        for conn in self._to.pop((consumer, ack.stream_seq), ()):
            self._held.get((conn, consumer), OrderedDict()).pop(ack.stream_seq, None)
            self._passed_by.pop((conn, consumer, ack.stream_seq), None)

    def at_end(self) -> None:
        """Judge what is still open."""
        for (conn, consumer, seq), (proof, later) in self._passed_by.items():
            config = self.history.consumers.get(consumer)
            wait = (0 if config is None else number(config, "ack_wait")) or ACK_WAIT
            patience = wait + self.history.patience.grace
            if conn.cause != close_reasons.CLIENT_CLOSED and not self.waited(conn, proof.t, patience):
                continue
            if config is None:
                self.cannot_say("the ack policy of a consumer is not in it", proof)
            elif config.get("ack_policy", "none") == "explicit":
                if self.history.is_shared(consumer):
                    self.cannot_say("a consumer is shared with clients that are not in it", proof)
                    continue
                text = f"{conn.label}: message {seq} of {named(consumer)} was never acked, a later one was"
                self.found(text, [proof, later], proof.t, conn)


@dataclass(slots=True)
class _PullRequest:
    """A pull request.

    left: messages that may still come.  expires: ns, None for never.  reached: it went to the server.
    over: it got its messages, or its end.
    """

    reply: bytes
    proof: ProofFrame
    t: int
    left: int
    expires: int | None
    reached: bool
    over: bool = False


class EndlessPulls(Check):
    """Pull requests that neither got all their messages nor a status, long after their expiry.

    A client that unsubscribes, or leaves, ends its pulls.
    """

    from_client = (*PUBLISHES, Op.UNSUB)
    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._open: Table[tuple[ClientConnection, Consumer], deque[_PullRequest]] = Table()
        self._replies: Table[tuple[ClientConnection, bytes], Consumer] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        frame = moment.frame
        if moment.direction == C2S:
            if frame.op in PUBLISHES and moment.sent and frame.reply:
                self._asked(moment)
            elif frame.op == Op.UNSUB and moment.sent:
                self._unsubscribed(moment)
        elif moment.passed and moment.ack is not None and moment.sub is not None:
            self._message(moment.conn, (moment.ack.stream, moment.ack.consumer), moment.sub.subject)
        elif moment.passed and moment.status not in _BETWEEN and frame.op in DELIVERIES:
            consumer = self._replies.get((moment.conn, frame.subject))
            for pull in self._waiting(moment.conn, consumer, frame.subject):
                if pull.reached:
                    pull.over = True
                    break

    def _asked(self, moment: Moment) -> None:
        consumer, body = _pulled(moment)
        if consumer is None:
            return
        if not moment.whole:
            self.cannot_say("the payloads of pull requests are withheld", moment.proof)
            return
        wanted = pull_request(body)
        expires = wanted.expires if wanted.expires or wanted.no_wait else None
        reply = moment.frame.reply
        pull = _PullRequest(reply, moment.proof, moment.t, wanted.batch, expires, moment.passed)
        self._replies[moment.conn, reply] = consumer
        waiting = self._open.setdefault((moment.conn, consumer), deque(maxlen=_HELD))
        while waiting and waiting[0].over:
            waiting.popleft()
        waiting.append(pull)

    def _waiting(
        self, conn: ClientConnection, consumer: Consumer | None, inbox: bytes
    ) -> Iterator[_PullRequest]:
        """Yield the pulls that stand, of those with a reply on an inbox."""
        waiting = () if consumer is None else self._open.get((conn, consumer), ())
        return (pull for pull in waiting if not pull.over and matches(inbox, pull.reply))

    def _message(self, conn: ClientConnection, consumer: Consumer, inbox: bytes) -> None:
        # A message comes under its own subject: its subscription tells the inbox.
        for pull in self._waiting(conn, consumer, inbox):
            if pull.reached:
                pull.left -= 1
                pull.over = pull.left <= 0
                break

    def _unsubscribed(self, moment: Moment) -> None:
        sub = moment.conn.subs.get(moment.frame.sid)
        consumer = None if sub is None else self._replies.get((moment.conn, sub.subject))
        for pull in self._waiting(moment.conn, consumer, b"" if sub is None else sub.subject):
            pull.over = True

    def at_end(self) -> None:
        """Judge what is still open."""
        for (conn, consumer), waiting in self._open.items():
            for pull in waiting:
                if pull.over or pull.expires is None or not any(conn.live(pull.reply)):
                    continue
                due = pull.t + pull.expires
                if self.waited(conn, due, self.history.patience.grace):
                    over = short_duration(self.history.until(conn) - due)
                    lost = "" if pull.reached else "; it did not reach the server"
                    text = f"a pull from {named(consumer)} had no end {over} after its expiry{lost}"
                    self.found(f"{conn.label}: {text}", [pull.proof], pull.t, conn)


def _pulled(moment: Moment) -> tuple[Consumer | None, bytes]:
    """Return the consumer of a pull request, and its body; None for any other frame."""
    ack, body = moment.ack, moment.frame.body
    if ack is not None and body.startswith(b"+NXT"):
        return (ack.stream, ack.consumer), body[4:].strip()
    call = None if moment.request is None else moment.request.call
    if call is not None and call.verb == b"CONSUMER.MSG.NEXT":
        return (call.stream, call.consumer), body
    return None, b""


class StalledConsumers(Check):
    """A push consumer that waits for an answer to flow control, says so in heartbeats, and never gets it."""

    from_client = PUBLISHES
    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._asked: Table[bytes, tuple[ClientConnection, list[ProofFrame]]] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        if moment.direction == C2S:
            if moment.frame.op in PUBLISHES and moment.passed:
                self._asked.pop(moment.frame.subject, None)
        elif moment.status is StatusKind.HEARTBEAT and moment.passed:
            reply = headers.get(moment.frame.headers, b"Nats-Consumer-Stalled")
            if reply:
                _, beats = self._asked.setdefault(reply, (moment.conn, []))
                beats[1:] = [moment.proof]

    def at_end(self) -> None:
        """Judge what is still open."""
        for reply, (conn, beats) in self._asked.items():
            if len(beats) > 1:
                time = short_duration(beats[-1].t - beats[0].t)
                consumer = ".".join(reply.decode(errors="replace").split(".")[2:4])
                text = f"{conn.label}: consumer {consumer} waits for an answer to flow control for {time}"
                self.found(text, beats, beats[0].t, conn)
