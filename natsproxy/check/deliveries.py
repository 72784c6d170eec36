"""Checks of messages on their way to subscribers: lost, repeated, or after the end of a subscription."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.check.base import FORGOT, Check
from natsproxy.check.consumers import ACK_WAIT, named
from natsproxy.check.history import (
    DELIVERIES,
    PUBLISHES,
    ClientConnection,
    Consumer,
    History,
    Moment,
    RecordedRequest,
    Sub,
    Table,
)
from natsproxy.check.statement import ProofFrame
from natsproxy.protocol.identifiers import find_inbox
from natsproxy.protocol.jetstream import AckSubject, number
from natsproxy.protocol.subjects import matches
from natsproxy.wire.ops import C2S, S2C, Op

_WINDOW: Final = 10_000
"""Messages of one consumer, or of one connection, that are looked back on."""


class MessagesAfterUnsub(Check):
    """Messages on a subscription after its UNSUB, or beyond the count of its UNSUB.

    Some may be on their way when the client unsubscribes.  Not any more when a PING that the client sent
    after the UNSUB is answered, or after two seconds.
    """

    from_server = DELIVERIES

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        sub, conn = moment.sub, moment.conn
        if sub is None or sub.unsub is None or sub.live or not moment.passed or moment.frame.no_responders:
            return
        if sub.max and sub.got <= sub.max:
            return
        made_here = 0 < sub.max >= sub.came
        if made_here or conn.pongs > sub.mark or moment.t - sub.unsub.t > self.history.patience.grace:
            subject = sub.subject.decode(errors="replace")
            count = f" for {sub.max} messages, and {sub.got} came" if sub.max else ""
            text = f"{conn.label}: a message on {subject} came after its UNSUB{count}"
            self.found(text, [sub.proof, sub.unsub, moment.proof], sub.proof.t, conn)


class GroupRepetitions(Check):
    """A message that a queue group, or the clients of a consumer, got twice though it was no redelivery.

    It remembers the last 100,000 messages.
    """

    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._seen: BoundedDict[object, ProofFrame] = BoundedDict()
        self._made: BoundedDict[tuple[ClientConnection, int], ProofFrame] = BoundedDict()
        self._last: Table[Consumer, bytes] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        sub, ack = moment.sub, moment.ack
        if moment.direction == C2S or not moment.passed or moment.frame.op not in DELIVERIES or sub is None:
            return
        if ack is not None:
            config = self.history.consumers.get((ack.stream, ack.consumer))
            if config is None or config.get("ack_policy") != "none":
                self._of_consumer(moment, ack)
        elif sub.queue:
            self._of_group(moment, sub)

    def _of_consumer(self, moment: Moment, ack: AckSubject) -> None:
        consumer, reply = (ack.stream, ack.consumer), moment.frame.reply
        before, twice = self._before(moment, reply)
        if before is not None:
            what = f"message {ack.stream_seq} of {named(consumer)}"
            text = f"{moment.conn.label}: {what} came twice, with no redelivery between"
            if twice or self._last.get(consumer) == reply:
                self.found(text, [before, moment.proof], before.t, moment.conn)
            else:
                self.cannot_say("a consumer may have been made anew", before, moment.proof)
        self._last[consumer] = reply

    def _of_group(self, moment: Moment, sub: Sub) -> None:
        frame, conn = moment.frame, moment.conn
        content = hash((frame.subject, frame.headers, frame.body))
        key = (sub.subject, sub.queue, conn.account, frame.reply, content)
        before, twice = self._before(moment, key)
        if before is None:
            return
        asked = self.history.requests.get(frame.reply) if frame.reply else None
        once = asked is not None and not asked.again and find_inbox(frame.reply) is not None
        if twice or once:
            group = f"{sub.queue.decode(errors='replace')} of {sub.subject.decode(errors='replace')}"
            text = f"{conn.label}: queue group {group} got a message twice"
            self.found(text, [None if asked is None else asked.proof, before, moment.proof], before.t, conn)

    def _before(self, moment: Moment, key: object) -> tuple[ProofFrame | None, bool]:
        """Return the earlier copy of a message, and whether the proxy made both of one."""
        if not moment.sent and moment.of is not None:
            made = self._made.get((moment.conn, moment.of))
            self._made[moment.conn, moment.of] = moment.proof
            if made is not None:
                return made, True
        before = self._seen.get(key)
        self._seen[key] = moment.proof
        return before, False


@dataclass(slots=True)
class _Expected:
    """A message that a subscription should get.

    mark: the PINGs of its client before the ack; -1 before that.  due: a later PING was answered.
    came: the message, which did not go on.
    """

    conn: ClientConnection
    sub: Sub
    request: RecordedRequest
    mark: int = -1
    due: bool = False
    came: ProofFrame | None = None


class _Miss(NamedTuple):
    """A stored message that a consumer did not give to a client.

    proof: of that.  came: it came from the server, and did not go on.
    """

    consumer: Consumer
    conn: ClientConnection
    proof: ProofFrame
    came: bool


@dataclass(slots=True)
class _ConsumerProgress:
    """The deliveries of a consumer, by stream sequence.

    last: the highest.  t, conn: the time of the latest, and its client.  got: those that reached clients, of
    the last 10,000.
    """

    last: int
    conn: ClientConnection
    t: int = 0
    got: OrderedDict[int, None] = field(default_factory=OrderedDict)


class LostPublishes(Check):
    """A publish that JetStream acked, and that a live subscription or consumer of its subject never got.

    Of core subscriptions: those that the server knew before the publish, and that lived on until a PING after
    the ack was answered.  Of consumers: messages that were passed over, or that came and were dropped here.
    """

    needs_payloads = True
    from_client = (*PUBLISHES, Op.SUB, Op.UNSUB)
    from_server = (*DELIVERIES, Op.PONG)

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._subs: Table[tuple[ClientConnection, bytes], Sub] = Table()
        self._known: BoundedDict[ClientConnection, None] = BoundedDict()
        self._listeners: BoundedDict[bytes, list[tuple[ClientConnection, Sub]]] = BoundedDict()
        self._expected: Table[ClientConnection, OrderedDict[bytes, _Expected]] = Table()
        self._by_reply: Table[bytes, list[_Expected]] = Table()
        self._subjects: BoundedDict[tuple[ClientConnection, bytes, bytes], None] = BoundedDict()
        self._stored: Table[bytes, Table[int, RecordedRequest]] = Table()
        self._progress: Table[bytes, Table[bytes, _ConsumerProgress]] = Table()
        self._missing: Table[tuple[bytes, int], list[_Miss]] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        conn, frame = moment.conn, moment.frame
        if conn not in self._known:
            self._known[conn] = None
            for sid, sub in conn.subs.items():
                self._listen(conn, sid, sub)
        if moment.direction == S2C:
            self._from_server(moment)
        elif frame.op == Op.SUB and frame.sid in conn.subs:
            self._listen(conn, frame.sid, conn.subs[frame.sid])
        elif frame.op == Op.UNSUB:
            self._listeners.clear()
        elif moment.request is not None and moment.sent and moment.request.call is None:
            self._published(moment.request)

    def _listen(self, conn: ClientConnection, sid: bytes, sub: Sub) -> None:
        if not sub.queue and find_inbox(sub.subject) is None:
            self._subs[conn, sid] = sub
            self._listeners.clear()

    def _from_server(self, moment: Moment) -> None:
        request = moment.request
        if request is not None and request.ack is not None and moment.sent and request.came == 1:
            self._acked(request)
        if moment.ack is not None:
            self._delivered(moment, moment.ack)
        elif moment.frame.op in DELIVERIES and moment.sub is not None:
            self._message(moment, moment.sub)
        elif moment.frame.op == Op.PONG and moment.passed:
            for one in self._expected.get(moment.conn, OrderedDict()).values():
                if 0 <= one.mark < moment.conn.pongs and one.sub.live:
                    one.due = True

    # -- core subscriptions

    def _published(self, request: RecordedRequest) -> None:
        known = self._listeners.get(request.subject)
        if known is None:
            for key in [key for key, sub in self._subs.items() if not sub.live]:
                del self._subs[key]
            known = [
                (conn, sub) for (conn, _), sub in self._subs.items() if matches(sub.subject, request.subject)
            ]
            self._listeners[request.subject] = known
        expected = [
            _Expected(conn, sub, request)
            for conn, sub in known
            if conn.until is None
            and sub.live
            and _is_known(request.conn, conn, sub)
            and _may_get(request.conn, conn)
        ]
        if expected:
            self._by_reply[request.reply] = expected
            for one in expected:
                waiting = self._expected.setdefault(one.conn, OrderedDict())
                waiting[request.reply] = one
                if len(waiting) > _WINDOW:
                    waiting.popitem(last=False)
                    self.cannot_say(FORGOT)

    def _message(self, moment: Moment, sub: Sub) -> None:
        self._subjects[moment.conn, sub.sid, moment.frame.subject] = None
        waiting = self._expected.get(moment.conn)
        one = waiting.get(moment.frame.reply) if waiting and moment.frame.reply else None
        if waiting is None or one is None or one.sub is not sub:
            return
        if moment.passed:
            del waiting[moment.frame.reply]
        else:
            one.came = moment.proof

    # -- acks of publishes

    def _acked(self, request: RecordedRequest) -> None:
        ack = request.ack
        if ack is None or ack.error is not None:
            self._by_reply.pop(request.reply, None)
            return
        for one in self._by_reply.pop(request.reply, ()):
            one.mark = one.conn.pings
        if ack.duplicate:
            return
        stream = ack.stream.encode(errors="replace")
        self._stored.setdefault(stream, Table())[ack.seq] = request
        for name, progress in self._progress.get(stream, Table()).items():
            if progress.last - _WINDOW < ack.seq < progress.last and ack.seq not in progress.got:
                self._miss(ack.seq, _Miss((stream, name), progress.conn, request.proof, came=False))

    # -- consumers

    def _delivered(self, moment: Moment, ack: AckSubject) -> None:
        consumer, seq = (ack.stream, ack.consumer), ack.stream_seq
        consumers = self._progress.setdefault(ack.stream, Table())
        progress = consumers.setdefault(ack.consumer, _ConsumerProgress(seq - 1, moment.conn))
        progress.t, progress.conn = moment.t, moment.conn
        if moment.passed:
            progress.got[seq] = None
            if len(progress.got) > _WINDOW:
                progress.got.popitem(last=False)
            self._came(consumer, seq, moment.conn)
        else:
            self._miss(seq, _Miss(consumer, moment.conn, moment.proof, came=True))
        if seq > progress.last:
            stored = self._stored.get(ack.stream)
            for over in range(max(progress.last + 1, seq - _WINDOW), seq) if stored else ():
                if stored is not None and over in stored:
                    self._miss(over, _Miss(consumer, moment.conn, moment.proof, came=False))
            progress.last = seq

    def _miss(self, seq: int, miss: _Miss) -> None:
        missing = self._missing.setdefault((miss.consumer[0], seq), [])
        if len(missing) < _WINDOW and all(one.consumer != miss.consumer for one in missing):
            missing.append(miss)

    def _came(self, consumer: Consumer, seq: int, conn: ClientConnection) -> None:
        """Note that a message reached a client after all, by its consumer or another one of the client."""
        missing = self._missing.pop((consumer[0], seq), None)
        left = [one for one in missing or () if one.consumer != consumer and one.conn is not conn]
        if left:
            self._missing[consumer[0], seq] = left

    # -- the end

    def at_end(self) -> None:
        """Judge what is still open."""
        for waiting in self._expected.values():
            for one in waiting.values():
                if one.due:
                    self._judge_subscription(one)
        for (stream, seq), missing in self._missing.items():
            request = self._stored.get(stream, Table()).get(seq)
            if request is not None:
                for miss in missing:
                    self._judge_consumer(seq, request, miss)

    def _judge_subscription(self, one: _Expected) -> None:
        request, conn = one.request, one.conn
        ack = request.ack
        if ack is None or request.ack_proof is None:
            return
        if not self.waited(conn, request.ack_proof.t, self.history.patience.grace):
            return
        if one.came is None and (conn, one.sub.sid, request.subject) not in self._subjects:
            reason = "a subscription got nothing of a subject: permissions or mappings may be why"
            self.cannot_say(reason, request.proof, one.sub.proof)
            return
        subject = request.subject.decode(errors="replace")
        lost = "; it came, and was dropped" if one.came is not None else ""
        text = f"{conn.label}: a publish to {subject}, acked as {ack.stream} {ack.seq}, never came{lost}"
        frames = [one.sub.proof, request.proof, request.ack_proof, one.came]
        self.found(text, frames, request.t, conn, request.conn)

    def _judge_consumer(self, seq: int, request: RecordedRequest, miss: _Miss) -> None:
        consumer, conn, proof, came = miss
        config = self.history.consumers.get(consumer)
        if config is not None and not _selects(config, request.subject):
            return
        if came and config is not None:
            # Redelivered after ack_wait to whoever asks then.
            wait = (number(config, "ack_wait") or ACK_WAIT) + self.history.patience.grace
            latest = self._progress[consumer[0]][consumer[1]].t
            if config.get("ack_policy") != "none" and latest - proof.t < wait:
                return
        reason = self._doubt(consumer, config, came=came)
        if reason:
            self.cannot_say(reason, request.proof, proof)
            return
        how = "it came, and was dropped" if came else "it was passed over"
        text = f"{conn.label}: message {seq} of {named(consumer)}, acked to its publisher, never came: {how}"
        self.found(text, [request.proof, request.ack_proof, proof], request.t, conn, request.conn)

    def _doubt(self, consumer: Consumer, config: dict[str, Any] | None, *, came: bool) -> str:
        """Return the reason why a consumer may rightly leave messages out, "" for none."""
        if config is None:
            return "the configuration of a consumer is not in it"
        if came:
            return ""
        name = consumer[0].decode(errors="replace")
        reasons = _reasons(self.history.streams.get(name), config)
        reasons["messages were removed from a stream"] = name in self.history.changed
        reasons["a consumer is shared with clients that are not in it"] = self.history.is_shared(consumer)
        return next((reason for reason, holds in reasons.items() if holds), "")


def _reasons(stream: dict[str, Any] | None, config: dict[str, Any]) -> dict[str, bool]:
    """Return the reasons for which a stream and a consumer may leave messages out, and which of them hold."""
    limits = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
    known = stream or {}
    return {
        "the configuration of a stream is not in it": stream is None,
        "the limits of a stream may have removed messages": any(number(known, limit) for limit in limits),
        "acks of other consumers may have removed messages": known.get("retention")
        in ("interest", "workqueue"),
        "a consumer delivers the last message of a subject": "last" in str(config.get("deliver_policy")),
        "a consumer was paused": bool(config.get("pause_until")),
    }


def _selects(config: dict[str, Any], subject: bytes) -> bool:
    """Tell whether a consumer's filters select a subject."""
    several = config.get("filter_subjects")
    filters = several if isinstance(several, list) and several else [config.get("filter_subject") or ">"]
    return any(matches(str(pattern).encode(errors="replace"), subject) for pattern in filters)


def _is_known(publisher: ClientConnection, conn: ClientConnection, sub: Sub) -> bool:
    """Tell whether the server has certainly taken a SUB before a publish.

    It came before on the same connection, or a PING of its client was answered in the meantime.
    """
    return publisher is conn or conn.pongs > sub.mark or sub.proof.ordinal is None


def _may_get(publisher: ClientConnection, conn: ClientConnection) -> bool:
    """Tell whether messages of a publisher go to a connection, as far as it concerns their accounts."""
    if publisher is conn:
        return conn.connect.echo
    accounts = [_account(one) for one in (publisher, conn)]
    return None not in accounts and accounts[0] == accounts[1]


def _account(conn: ClientConnection) -> tuple[str, str] | None:
    """Return the account of a connection, or what stands for it; None where that is unknown."""
    if conn.account:
        return ("account", conn.account)
    if conn.connect.credentials - {"user", "pass"}:
        return None
    return ("user", conn.connect.user)
