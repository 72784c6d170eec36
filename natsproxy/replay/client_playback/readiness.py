"""The readiness of a frame: its dependencies, checked against the live connections.

Each check returns a phrase for people, `""` where nothing is missing, so that a wait that times out can name
its requirement.

A wait does not count while a frame that was not sent yet may still meet the requirement (`may_still_come`). A
connection that plays on may cause anything.  A connection that waits itself may cause only messages on the
subjects that it publishes to: so connections that wait for nothing of each other wait at the same time.
Causes were recorded before their effects, so of the waiting connections the one whose frame was recorded
first always counts its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.protocol.subjects import matches
from natsproxy.replay.client_playback.dependencies import Answer, MessageCount, Planned, PlannedEnd
from natsproxy.replay.client_playback.state import LiveConnection, PlaybackState, QueuedBatch, seq_of
from natsproxy.replay.conversation.identifier_map import INBOX
from natsproxy.replay.conversation.steps import PUBLISHES
from natsproxy.wire.ops import Op


def name_of(head: Planned | QueuedBatch | PlannedEnd) -> str:
    """Return the text of a queue's head, for people."""
    if isinstance(head, PlannedEnd):
        return "its end"
    if isinstance(head, QueuedBatch):
        return f"{head.frames} PUB {b', '.join(sorted(head.subjects)[:3]).decode(errors='replace')}"
    frame = head.step.frame
    return f"{frame.op.label} {(frame.subject or frame.sid).decode(errors='replace')}"


def _ordered(head: Planned | QueuedBatch | PlannedEnd) -> bool:
    """Return whether the head of a queue waits for all frames recorded before it."""
    if not isinstance(head, Planned):
        return isinstance(head, PlannedEnd)
    frame = head.step.frame
    if frame.op == Op.UNSUB:
        return not frame.args
    return frame.op == Op.SUB and not frame.subject.startswith(INBOX)


def _published(head: Planned | QueuedBatch | PlannedEnd) -> Iterable[bytes]:
    """Return the subjects to which the head of a queue publishes."""
    if isinstance(head, QueuedBatch):
        return head.subjects
    return (head.step.frame.subject,) if isinstance(head, Planned) and head.step.frame.op in PUBLISHES else ()


class Readiness:
    """Checks a `PlaybackState`.  keep: tells whether a recorded connection is played."""

    def __init__(self, state: PlaybackState, keep: Callable[[ConnectionId], bool]) -> None:
        self._state = state
        self._keep = keep

    def unmet(self, connection: LiveConnection, head: Planned | QueuedBatch) -> str:
        """Return the first requirement of a queue's head that is not met."""
        unmet = self.count(connection, head.counts) or self._api(head.api)
        if unmet:
            return unmet
        if isinstance(head, QueuedBatch):
            return self._end(connection, head.seq) or self._interest(connection, head.seq, head)
        return self._request(head) or self._end(connection, head.step.seq) or self._own(connection, head)

    def give_up(self, connection: LiveConnection, head: Planned | QueuedBatch) -> None:
        """Count the requirements of a frame as met, so that the frames behind it go on."""
        for sid, count, _ in head.counts:
            connection.received[sid] = max(count, connection.received.get(sid, 0))
        for key in head.api:
            self._state.api[key] = None

    def count(self, connection: LiveConnection, wanted: tuple[MessageCount, ...]) -> str:
        """Return the first message that has not come."""
        for sid, count, _ in wanted:
            if connection.received.get(sid, 0) < count:
                return f"message {count} on subscription {sid.decode(errors='replace')}"
        return ""

    def before(self, connection: LiveConnection, seq: int) -> str:
        """Return the first frame recorded before `seq` that the server has not handled yet."""
        if next(iter(self._state.unsent), seq) < seq:
            return "frames of other connections that were recorded before it"
        for other in self._state.connections.values():
            if other is connection or other.lost:
                continue
            if other.first_unfenced is not None and other.first_unfenced < seq:
                other.wants_fence = True
                return f"a PONG on connection {other.conn}"
            if any(fence.first is not None and fence.first < seq for fence in other.unfenced):
                return f"a PONG on connection {other.conn}"
        return ""

    def earlier_unplayed(self, connection: LiveConnection, head: Planned | QueuedBatch | PlannedEnd) -> bool:
        """Return whether a frame recorded before the head of a queue was not played yet."""
        seq = seq_of(head)
        return next(iter(self._state.unsent), seq) < seq or self._awaits_end(connection, head)

    def may_still_come(self, connection: LiveConnection, head: Planned | QueuedBatch | PlannedEnd) -> bool:
        """Return whether a frame that was not sent yet may meet the requirement of a queue's head."""
        if self._awaits_end(connection, head):
            return True
        causes, seq = self._causes(connection, head), seq_of(head)
        for other in self._state.connections.values():
            if other is connection or other.lost:
                continue
            for entry in other.queue:  # in recording order: behind `seq` there are no causes
                if isinstance(entry, Planned | QueuedBatch):
                    if seq_of(entry) >= seq:
                        break
                    if other.waiting_since is None or causes(entry):
                        return True
        return False

    def _awaits_end(self, connection: LiveConnection, head: Planned | QueuedBatch | PlannedEnd) -> bool:
        return not isinstance(head, PlannedEnd) and bool(self._end(connection, seq_of(head)))

    def _causes(
        self, connection: LiveConnection, head: Planned | QueuedBatch | PlannedEnd
    ) -> Callable[[Planned | QueuedBatch], bool]:
        """Return a function that tells whether a frame may meet the requirements of a queue's head."""
        open_ = [one for one in head.counts if connection.received.get(one.sid, 0) < one.messages]
        subjects = {subject for one in open_ for subject in one.subjects}
        patterns = [connection.sids[one.sid] for one in open_ if one.sid in connection.sids]
        api = () if isinstance(head, PlannedEnd) else head.api
        replies = {reply for conn, reply in api if (conn, reply) not in self._state.api}
        if not open_ and not replies and _ordered(head):
            return lambda entry: True
        if isinstance(head, Planned) and head.after >= 0:
            replies.add(head.step.frame.subject)
        own = _published(head)

        def cause(entry: Planned | QueuedBatch) -> bool:
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

    def _api(self, wanted: tuple[Answer, ...]) -> str:
        for conn, reply in wanted:
            if (conn, reply) not in self._state.api and self._keep(conn):
                return f"the JetStream API's answer on {reply.decode(errors='replace')}"
        return ""

    def _request(self, head: Planned) -> str:
        subject = head.step.frame.subject
        if head.after >= 0 and subject not in self._state.requests_received:
            return f"the request on {subject.decode(errors='replace')}"
        return ""

    def _own(self, connection: LiveConnection, head: Planned) -> str:
        """Return the unmet requirement that the op of a frame adds."""
        frame, seq = head.step.frame, head.step.seq
        if frame.op in (Op.SUB, Op.UNSUB):
            return self.before(connection, seq) if _ordered(head) else ""
        if frame.subject.startswith(b"$JS.ACK.") and self._state.names.ack(frame.subject) is None:
            return f"the delivery of {frame.subject.decode(errors='replace')}"
        return self._interest(connection, seq, head)

    def _end(self, connection: LiveConnection, seq: int) -> str:
        for conn, behind in self._state.leaving.items():
            if behind <= seq and conn != connection.conn:
                return f"the end of connection {conn}"
        return ""

    def _interest(self, connection: LiveConnection, seq: int, head: Planned | QueuedBatch) -> str:
        """Return the SUB of another connection that a publish may reach before the server knows it."""
        open_ = self._state.interest
        if connection.blocked not in open_:
            connection.blocked = next((sub for sub in open_ if self._reaches(connection, seq, head, sub)), -1)
        if connection.blocked < 0:
            return ""
        conn, pattern = open_[connection.blocked]
        return f"the subscription to {pattern.decode(errors='replace')} of connection {conn}"

    def _reaches(self, connection: LiveConnection, seq: int, head: Planned | QueuedBatch, sub: int) -> bool:
        conn, pattern = self._state.interest[sub]
        if sub >= seq or conn == connection.conn:
            return False
        return any(matches(pattern, subject) for subject in _published(head))
