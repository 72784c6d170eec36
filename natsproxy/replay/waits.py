"""What a frame waits for before it may be sent: the needs of `needs.py`, held against what has happened live.

Each question is answered with a clause for a person, `""` where nothing is open, so that a wait that ends in
vain names what it waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from natsproxy.protocol.subjects import matches
from natsproxy.replay.ears import Count
from natsproxy.replay.identities import INBOX
from natsproxy.replay.lives import Bulk, Live, Stage
from natsproxy.replay.needs import Planned
from natsproxy.wire.ops import Op


def name_of(head: Planned | Bulk) -> str:
    """Return what waits, for a person."""
    if isinstance(head, Bulk):
        return f"{head.frames} PUB {b', '.join(sorted(head.subjects)[:3]).decode(errors='replace')}"
    frame = head.step.frame
    return f"{frame.op.label} {(frame.subject or frame.sid).decode(errors='replace')}"


class Waits:
    """Asks a stage.  keep: which recorded connections are played."""

    def __init__(self, stage: Stage, keep: Callable[[int], bool]) -> None:
        self._stage = stage
        self._keep = keep

    def need(self, live: Live, head: Planned | Bulk) -> str:
        """Return what the head of a queue waits for."""
        need = self.count(live, head.counts) or self._api(head.api)
        if need:
            return need
        if isinstance(head, Bulk):
            return self._end(live, head.seq) or self._interest(live, head.seq, head)
        return self._asked(head) or self._end(live, head.step.seq) or self._own(live, head)

    def give_up(self, live: Live, head: Planned | Bulk) -> None:
        """Take what a frame waited for in vain for granted, so that those behind it go on."""
        for sid, count in head.counts:
            live.received[sid] = max(count, live.received.get(sid, 0))
        for key in head.api:
            self._stage.api[key] = None

    def count(self, live: Live, wanted: tuple[Count, ...]) -> str:
        """Return the first message that has not come."""
        for sid, count in wanted:
            if live.received.get(sid, 0) < count:
                return f"message {count} on subscription {sid.decode(errors='replace')}"
        return ""

    def before(self, live: Live, seq: int) -> str:
        """Return what was recorded before and was not sent yet, or not yet handled by the server."""
        if next(iter(self._stage.unsent), seq) < seq:
            return "frames of other connections that were recorded before it"
        for other in self._stage.lives.values():
            if other is live or other.gone:
                continue
            if other.dirty is not None and other.dirty < seq:
                other.fence = True
                return f"a PONG on connection {other.conn}"
            if any(fence.first is not None and fence.first < seq for fence in other.unfenced):
                return f"a PONG on connection {other.conn}"
        return ""

    def _api(self, wanted: tuple[tuple[int, bytes], ...]) -> str:
        for conn, reply in wanted:
            if (conn, reply) not in self._stage.api and self._keep(conn):
                return f"the JetStream API's answer on {reply.decode(errors='replace')}"
        return ""

    def _asked(self, head: Planned) -> str:
        subject = head.step.frame.subject
        if head.after >= 0 and subject not in self._stage.asked:
            return f"the request on {subject.decode(errors='replace')}"
        return ""

    def _own(self, live: Live, head: Planned) -> str:
        """Return what a frame of its op waits for."""
        frame, seq = head.step.frame, head.step.seq
        if frame.op == Op.UNSUB:
            return "" if frame.args else self.before(live, seq)
        if frame.op == Op.SUB:
            return "" if frame.subject.startswith(INBOX) else self.before(live, seq)
        if frame.subject.startswith(b"$JS.ACK.") and self._stage.names.ack(frame.subject) is None:
            return f"the delivery of {frame.subject.decode(errors='replace')}"
        return self._interest(live, seq, head)

    def _end(self, live: Live, seq: int) -> str:
        for conn, behind in self._stage.leaving.items():
            if behind <= seq and conn != live.conn:
                return f"the end of connection {conn}"
        return ""

    def _interest(self, live: Live, seq: int, head: Planned | Bulk) -> str:
        """Return the SUB of another connection that a publish may reach and the server may not know yet."""
        open_ = self._stage.interest
        if live.blocked not in open_:
            live.blocked = next((sub for sub in open_ if self._reaches(live, seq, head, sub)), -1)
        if live.blocked < 0:
            return ""
        conn, pattern = open_[live.blocked]
        return f"the subscription to {pattern.decode(errors='replace')} of connection {conn}"

    def _reaches(self, live: Live, seq: int, head: Planned | Bulk, sub: int) -> bool:
        conn, pattern = self._stage.interest[sub]
        if sub >= seq or conn == live.conn:
            return False
        subjects = head.subjects if isinstance(head, Bulk) else (head.step.frame.subject,)
        return any(matches(pattern, subject) for subject in subjects)
