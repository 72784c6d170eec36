"""What a frame waits for before it may be sent: the needs of `needs.py`, held against what has happened live.

Each question is answered with a clause for a person, `""` where nothing is open, so that a wait that ends in
vain names what it waited for.

A wait does not count while what it is for may come of a frame that was not sent yet (`early`).  A connection
that plays on may cause anything; of one that waits itself, what bears the subject that is awaited does, so
that those who wait for nothing of each other wait at the same time.  Causes were recorded before their
effects: of those that wait, the one whose frame was recorded first always counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from natsproxy.protocol.subjects import matches
from natsproxy.replay.client_playback.dependencies import Count, Planned, PlannedEnd
from natsproxy.replay.client_playback.state import Bulk, LiveConnection, PlaybackState, seq_of
from natsproxy.replay.conversation.identities import INBOX
from natsproxy.replay.conversation.steps import PUBLISHES
from natsproxy.wire.ops import Op


def name_of(head: Planned | Bulk | PlannedEnd) -> str:
    """Return what waits, for a person."""
    if isinstance(head, PlannedEnd):
        return "its end"
    if isinstance(head, Bulk):
        return f"{head.frames} PUB {b', '.join(sorted(head.subjects)[:3]).decode(errors='replace')}"
    frame = head.step.frame
    return f"{frame.op.label} {(frame.subject or frame.sid).decode(errors='replace')}"


def _ordered(head: Planned | Bulk | PlannedEnd) -> bool:
    """Tell whether the head of a queue waits for everything that was recorded before it."""
    if not isinstance(head, Planned):
        return isinstance(head, PlannedEnd)
    frame = head.step.frame
    if frame.op == Op.UNSUB:
        return not frame.args
    return frame.op == Op.SUB and not frame.subject.startswith(INBOX)


def _published(head: Planned | Bulk | PlannedEnd) -> Iterable[bytes]:
    """Return the subjects to which the head of a queue publishes."""
    if isinstance(head, Bulk):
        return head.subjects
    return (head.step.frame.subject,) if isinstance(head, Planned) and head.step.frame.op in PUBLISHES else ()


class Readiness:
    """Asks a stage.  keep: which recorded connections are played."""

    def __init__(self, state: PlaybackState, keep: Callable[[int], bool]) -> None:
        self._state = state
        self._keep = keep

    def need(self, live: LiveConnection, head: Planned | Bulk) -> str:
        """Return what the head of a queue waits for."""
        need = self.count(live, head.counts) or self._api(head.api)
        if need:
            return need
        if isinstance(head, Bulk):
            return self._end(live, head.seq) or self._interest(live, head.seq, head)
        return self._asked(head) or self._end(live, head.step.seq) or self._own(live, head)

    def give_up(self, live: LiveConnection, head: Planned | Bulk) -> None:
        """Take what a frame waited for in vain for granted, so that those behind it go on."""
        for sid, count, _ in head.counts:
            live.received[sid] = max(count, live.received.get(sid, 0))
        for key in head.api:
            self._state.api[key] = None

    def count(self, live: LiveConnection, wanted: tuple[Count, ...]) -> str:
        """Return the first message that has not come."""
        for sid, count, _ in wanted:
            if live.received.get(sid, 0) < count:
                return f"message {count} on subscription {sid.decode(errors='replace')}"
        return ""

    def before(self, live: LiveConnection, seq: int) -> str:
        """Return what was recorded before and was not sent yet, or not yet handled by the server."""
        if next(iter(self._state.unsent), seq) < seq:
            return "frames of other connections that were recorded before it"
        for other in self._state.lives.values():
            if other is live or other.gone:
                continue
            if other.dirty is not None and other.dirty < seq:
                other.fence = True
                return f"a PONG on connection {other.conn}"
            if any(fence.first is not None and fence.first < seq for fence in other.unfenced):
                return f"a PONG on connection {other.conn}"
        return ""

    def behind(self, live: LiveConnection, head: Planned | Bulk | PlannedEnd) -> bool:
        """Tell whether something that was recorded before the head of a queue has not been played."""
        seq = seq_of(head)
        return next(iter(self._state.unsent), seq) < seq or self._awaits_end(live, head)

    def early(self, live: LiveConnection, head: Planned | Bulk | PlannedEnd) -> bool:
        """Tell whether what the head of a queue waits for may come of a frame that was not sent yet."""
        if self._awaits_end(live, head):
            return True
        causes, seq = self._causes(live, head), seq_of(head)
        for other in self._state.lives.values():
            if other is live or other.gone:
                continue
            for entry in other.queue:
                if isinstance(entry, Planned | Bulk):
                    if seq_of(entry) >= seq:
                        break
                    if other.since is None or causes(entry):
                        return True
        return False

    def _awaits_end(self, live: LiveConnection, head: Planned | Bulk | PlannedEnd) -> bool:
        return not isinstance(head, PlannedEnd) and bool(self._end(live, seq_of(head)))

    def _causes(
        self, live: LiveConnection, head: Planned | Bulk | PlannedEnd
    ) -> Callable[[Planned | Bulk], bool]:
        """Return what tells whether a frame may cause what the head of a queue waits for."""
        open_ = [one for one in head.counts if live.received.get(one.sid, 0) < one.messages]
        subjects = {subject for one in open_ for subject in one.subjects}
        patterns = [live.sids[one.sid] for one in open_ if one.sid in live.sids]
        api = () if isinstance(head, PlannedEnd) else head.api
        replies = {reply for conn, reply in api if (conn, reply) not in self._state.api}
        if not open_ and not replies and _ordered(head):
            return lambda entry: True
        if isinstance(head, Planned) and head.after >= 0:
            replies.add(head.step.frame.subject)
        own = _published(head)

        def cause(entry: Planned | Bulk) -> bool:
            if isinstance(entry, Planned):
                frame = entry.step.frame
                if frame.op == Op.SUB:
                    return any(matches(frame.subject, subject) for subject in own)
                if frame.reply in replies:
                    return True
            return any(
                subject in subjects or any(matches(pattern, subject) for pattern in patterns)
                for subject in _published(entry)
            )

        return cause

    def _api(self, wanted: tuple[tuple[int, bytes], ...]) -> str:
        for conn, reply in wanted:
            if (conn, reply) not in self._state.api and self._keep(conn):
                return f"the JetStream API's answer on {reply.decode(errors='replace')}"
        return ""

    def _asked(self, head: Planned) -> str:
        subject = head.step.frame.subject
        if head.after >= 0 and subject not in self._state.asked:
            return f"the request on {subject.decode(errors='replace')}"
        return ""

    def _own(self, live: LiveConnection, head: Planned) -> str:
        """Return what a frame of its op waits for."""
        frame, seq = head.step.frame, head.step.seq
        if frame.op in (Op.SUB, Op.UNSUB):
            return self.before(live, seq) if _ordered(head) else ""
        if frame.subject.startswith(b"$JS.ACK.") and self._state.names.ack(frame.subject) is None:
            return f"the delivery of {frame.subject.decode(errors='replace')}"
        return self._interest(live, seq, head)

    def _end(self, live: LiveConnection, seq: int) -> str:
        for conn, behind in self._state.leaving.items():
            if behind <= seq and conn != live.conn:
                return f"the end of connection {conn}"
        return ""

    def _interest(self, live: LiveConnection, seq: int, head: Planned | Bulk) -> str:
        """Return the SUB of another connection that a publish may reach and the server may not know yet."""
        open_ = self._state.interest
        if live.blocked not in open_:
            live.blocked = next((sub for sub in open_ if self._reaches(live, seq, head, sub)), -1)
        if live.blocked < 0:
            return ""
        conn, pattern = open_[live.blocked]
        return f"the subscription to {pattern.decode(errors='replace')} of connection {conn}"

    def _reaches(self, live: LiveConnection, seq: int, head: Planned | Bulk, sub: int) -> bool:
        conn, pattern = self._state.interest[sub]
        if sub >= seq or conn == live.conn:
            return False
        return any(matches(pattern, subject) for subject in _published(head))
