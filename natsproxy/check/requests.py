"""Checks of requests and their answers, and of publishes that are sent again."""

from __future__ import annotations

from typing import Final

from natsproxy import close_reasons
from natsproxy.bounded import BoundedDict
from natsproxy.check.base import FORGOT, Check
from natsproxy.check.history import (
    DELIVERIES,
    PUBLISHES,
    ClientConnection,
    History,
    Moment,
    RecordedRequest,
    Table,
)
from natsproxy.check.statement import ProofFrame
from natsproxy.protocol.identifiers import find_inbox
from natsproxy.protocol.jetstream import PublishAck, publish_ack
from natsproxy.units import short_duration
from natsproxy.wire.ops import C2S, Op

_COPIES: Final = 16
"""Messages of one content that are remembered."""


class UnansweredRequests(Check):
    """Requests that got neither an answer nor a 503 while their client waited.

    Of a question that the client asked again the last request counts: with the same words, or, after some
    waiting, with other numbers and ids in them.
    The client's patience: until it unsubscribes the reply subject, or leaves without another word; else five
    seconds.
    """

    from_client = (*PUBLISHES, Op.SUB, Op.UNSUB)
    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._open: Table[bytes, RecordedRequest] = Table()
        self._asked_before: Table[tuple[str, int], RecordedRequest] = Table()
        self._asked_alike: BoundedDict[tuple[str, int], RecordedRequest] = BoundedDict()
        self._last: Table[ClientConnection, int] = Table()
        self._given_up: Table[bytes, ProofFrame] = Table()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        frame = moment.frame
        if moment.direction == C2S and moment.sent:
            if frame.op == Op.UNSUB:
                self._unsubscribed(moment)
            else:
                self._last[moment.conn] = moment.t
            if frame.op in PUBLISHES and moment.request is not None and asks(moment):
                self._asked(moment.request)
        elif moment.request is not None and moment.passed and moment.request.got:
            self._answered(moment.request)

    def _asked(self, request: RecordedRequest) -> None:
        name = request.conn.name
        before = self._asked_before.pop((name, request.asks), None)
        if before is not None:
            self._open.pop(before.reply, None)
        alike = self._asked_alike.get((name, request.shape))
        if alike is not None and request.t - alike.t >= self.history.patience.left:
            self._open.pop(alike.reply, None)
        self._asked_alike[name, request.shape] = request
        self._asked_before[name, request.asks] = self._open[request.reply] = request

    def _answered(self, request: RecordedRequest) -> None:
        if self._open.pop(request.reply, None) is not None:
            self._asked_before.pop((request.conn.name, request.asks), None)

    def _unsubscribed(self, moment: Moment) -> None:
        sub = moment.conn.subs.get(moment.frame.sid)
        if sub is not None and not sub.max and sub.subject in self._open:
            self._given_up[sub.subject] = moment.proof

    def at_end(self) -> None:
        """Judge what is still open."""
        for request in self._open.values():
            until, why, frame = self._patience(request)
            if self.history.requests.get(request.reply) is not request:
                self.cannot_say(FORGOT, request.proof)
                continue
            if until is None:
                self.waited(request.conn, request.t, self.history.patience.answer)
                continue
            waited = short_duration(until - request.t)
            lost = "" if request.reached else "; it did not reach the server"
            if request.came:
                lost = "; the answer did not reach the client"
            subject = request.subject.decode(errors="replace")
            text = f"{request.conn.label}: a request to {subject} had no answer in {waited}, {why}{lost}"
            self.found(text, [request.proof, request.lost, frame], request.t, request.conn)

    def _patience(self, request: RecordedRequest) -> tuple[int | None, str, ProofFrame | None]:
        """Return the time at which the client's patience ended, its end in words, and the frame of it."""
        patience, conn = self.history.patience, request.conn
        until = self.history.until(request.conn)
        gone = self._given_up.get(request.reply)
        if gone is not None:
            return gone.t, "when the client unsubscribed", gone
        if until - request.t >= patience.answer:
            return until, "until the end", None
        alone = self._last.get(conn, 0) <= request.t
        if conn.cause == close_reasons.CLIENT_CLOSED and alone and until - request.t >= patience.left:
            return until, "when the client left", None
        return None, "", None


def asks(moment: Moment) -> bool:
    """Tell whether a publish waits for an answer: on an inbox that its client listens to, and is no pull."""
    frame, conn, request = moment.frame, moment.conn, moment.request
    if request is None or request.again or frame.subject.startswith(b"$JS.FC."):
        return False
    if moment.ack is not None and moment.whole and frame.body.startswith(b"+NXT"):
        return False
    if request.call is not None and request.call.verb == b"CONSUMER.MSG.NEXT":
        return False
    return find_inbox(frame.reply) is not None and any(not sub.queue for sub in conn.live(frame.reply))


class StoredTwice(Check):
    """A publish that JetStream stored, whose ack did not come, and that was sent and stored again.

    Nats-Msg-Id prevents it: the second ack then says "duplicate".  That the first one was stored is known
    from its ack, which was lost behind the proxy, or from its delivery.
    """

    needs_payloads = True
    from_client = PUBLISHES
    from_server = DELIVERIES

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name, history)
        self._latest: BoundedDict[tuple[str, int], RecordedRequest] = BoundedDict()
        self._again: Table[bytes, tuple[RecordedRequest, RecordedRequest]] = Table()
        self._stored: BoundedDict[tuple[str, int], dict[int, ProofFrame]] = BoundedDict()

    def saw(self, moment: Moment) -> None:
        """Take the next frame."""
        request, ack = moment.request, moment.ack
        if moment.direction == C2S:
            if request is not None and moment.sent and request.whole and request.call is None:
                self._sent(request)
        elif request is not None and request.ack is not None and request.ack_proof is not None:
            if moment.sent and not (request.ack.error or request.ack.duplicate):
                self._note(request.ack.stream, request.key, request.ack.seq, request.ack_proof)
                self._acked_again(moment, request, request.ack)
        elif ack is not None and moment.whole:
            frame = moment.frame
            key = hash((frame.subject, frame.headers, frame.body))
            self._note(ack.stream.decode(errors="replace"), key, ack.stream_seq, moment.proof)

    def _sent(self, request: RecordedRequest) -> None:
        key = (request.conn.name, request.key)
        before = self._latest.get(key)
        if before is not None and before.reached and not before.got:
            self._again[request.reply] = (before, request)
        self._latest[key] = request

    def _acked_again(self, moment: Moment, request: RecordedRequest, first: PublishAck) -> None:
        second = publish_ack(moment.frame.body) if request.came > 1 and moment.whole else None
        if second is None or second.error or second.duplicate or second.stream != first.stream:
            return
        if second.seq != first.seq:
            subject = request.subject.decode(errors="replace")
            text = (
                f"a publish to {subject} was stored twice in {first.stream}, as {first.seq} and {second.seq}"
            )
            frames = [request.proof, request.ack_proof, moment.proof]
            self.found(f"{request.conn.label}: {text}", frames, request.t, request.conn)

    def _note(self, stream: str, key: int, seq: int, proof: ProofFrame) -> None:
        seen = self._stored.setdefault((stream, key), {})
        if len(seen) < _COPIES:
            seen.setdefault(seq, proof)

    def at_end(self) -> None:
        """Judge what is still open."""
        for before, again in self._again.values():
            ack = again.ack
            if before.got or ack is None or ack.error or ack.duplicate:
                continue
            first = self._first(before, ack.stream, ack.seq)
            if first is None:
                continue
            seq, proof = first
            subject = again.subject.decode(errors="replace")
            text = (
                f"{again.conn.label}: the ack of a publish to {subject} was lost, and it was stored twice "
                f"in {ack.stream}, as {seq} and {ack.seq}"
            )
            frames = [before.proof, proof, again.proof, again.ack_proof]
            self.found(text, frames, before.t, before.conn, again.conn)

    def _first(self, before: RecordedRequest, stream: str, second: int) -> tuple[int, ProofFrame] | None:
        """Return the sequence under which a publish was stored, and the frame that shows it."""
        if before.ack is not None and before.ack_proof is not None:
            known = before.ack
            if known.error or known.duplicate or known.seq == second:
                return None
            return known.seq, before.ack_proof
        copies = self._stored.get((stream, before.key), {})
        later = [(seq, proof) for seq, proof in copies.items() if seq < second and proof.t >= before.t]
        return later[0] if len(later) == 1 else None
