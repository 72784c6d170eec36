"""The choice of the recorded connection that a live client plays.

The client's own frames decide.  The candidates are the recorded connections that nobody plays and that have
its client name; where none has it, those that have an exchange for one of its frames.  Of these the one wins
that matches most of the frames in its first batch with a SUB or a publish, then the earliest.

Connections of one client name are workers of one kind: what one of them was to publish or to request, another
one may.
A frame that does not fit may still move a client to another recorded connection that fits its whole history,
as long as nothing was sent because of its frames: a later change of mind would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from natsproxy.protocol.connect import DEFAULTS, Connect
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.exchanges import Answered, RecordedConnection, RecordedExchange
from natsproxy.replay.conversation.frame_kind import FrameKind, delivery_request
from natsproxy.replay.conversation.identifier_map import LearnedPairs
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recorded_conversation import RecordedConversation
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

HISTORY: Final = 64
"""Frames after which a client stays with its recorded connection."""


@dataclass(slots=True)
class Client:
    """A live client.

    verbose: it expects a +OK for each frame.  connect_frame: its CONNECT.  subs: the subjects of its
    subscriptions, by sid.  inboxes: those to inboxes whose recorded ones are not known yet, with their times.
    sids: live sid to recorded sid.  held: frames that wait for it to be bound.  history: its first frames.
    used, learned: the exchanges that they matched, the identifiers that they taught.  committed: a frame was
    sent because of it, so it cannot become another recorded connection.  passed: the real server has frames
    of it.  unpassed: what the real server would need for each of its subscriptions, by sid.  limits: the
    number of messages that a subscription still takes, by sid, where it has a limit.
    """

    id: int
    connect: Connect = DEFAULTS
    verbose: bool = False
    connect_frame: Frame | None = None
    recorded: RecordedConnection | None = None
    subs: dict[bytes, bytes] = field(default_factory=dict)
    inboxes: dict[bytes, tuple[Frame, int]] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    held: list[Frame] = field(default_factory=list)
    history: list[Frame] = field(default_factory=list)
    used: list[RecordedExchange] = field(default_factory=list)
    learned: LearnedPairs = field(default_factory=LearnedPairs)
    committed: bool = False
    passed: bool = False
    unpassed: dict[bytes, bytes] = field(default_factory=dict)
    limits: dict[bytes, int] = field(default_factory=dict)

    def remember(self, exchange: RecordedExchange, new: LearnedPairs) -> None:
        """Note the exchange that one of its frames matched, as long as that may have to be undone."""
        if not self.committed:
            self.committed = bool(exchange.effects) or len(self.history) >= HISTORY
            self.used.append(exchange)
            self.learned.add(new)

    def hears(self, subject: bytes) -> bytes | None:
        """Return the subscription on which it gets the messages of a subject."""
        return next((sid for sid, pattern in self.subs.items() if matches(pattern, subject)), None)

    def take_answers(self, exchange: RecordedExchange, frame: Frame) -> None:
        """Let the answers to its request come here, where another connection had sent the recorded one."""
        sid = self.hears(frame.reply)
        if sid is None:
            return
        for effect in exchange.effects:
            if effect.frame is not None and effect.frame.subject == exchange.frame.reply:
                effect.to = Answered(self.id, sid, frame.reply)


def is_like(exchange: RecordedExchange, frame: Frame) -> bool:
    """Tell whether a recorded publish or request of another client may be this live one."""
    return bool(exchange.frame.reply) == bool(frame.reply) and delivery_request(exchange.frame) is None


class Binder:
    """Chooses recorded connections for clients."""

    def __init__(self, conversation: RecordedConversation, matcher: Matcher) -> None:
        self._conversation = conversation
        self._matcher = matcher

    def bind(self, client: Client) -> None:
        """Bind a client by the frames that it holds; it stays unbound where no connection is left."""
        best = self._choose(client, client.held)
        if best is not None:
            best.client_id, client.recorded = client.id, best

    def _choose(self, client: Client, frames: list[Frame]) -> RecordedConnection | None:
        free = [
            r
            for r in self._conversation.connections.values()
            if r.client_id is None and (r.exchanges or r.unsent)
        ]
        named = [r for r in free if r.name == client.connect.name]
        # A name alone is enough; without it at least one frame has to fit.
        best, most = None, -1 if named else 0
        for recorded in named or free:
            fits = self._fits(recorded, frames)
            if fits > most:
                best, most = recorded, fits
        return best

    def _fits(self, recorded: RecordedConnection, frames: list[Frame]) -> int:
        """Count the frames that a recorded connection has exchanges for; learn nothing."""
        taken: set[int] = set()
        new = LearnedPairs()
        for frame in map(self._matcher.seen, frames):
            for exchange in recorded.candidates(
                frame, self._matcher.identifiers, any_subject=self._matcher.any_subject(frame)
            ):
                if exchange.seq in taken:
                    continue
                trial = new.copy()
                # The inbox of a subscription is known later, by its request.
                if exchange.kind is FrameKind.INBOX or not self._matcher.differs(
                    exchange.frame, frame, trial
                ):
                    taken.add(exchange.seq)
                    new = trial
                    break
        return len(taken)

    def find(
        self, recorded: RecordedConnection | None, frame: Frame, clients: Mapping[int, Client]
    ) -> tuple[RecordedExchange, LearnedPairs] | None:
        """Return the first exchange that agrees with a live frame; clients: those that are there."""
        if recorded is None:
            return None
        frame, identifiers = self._matcher.seen(frame), self._matcher.identifiers
        any_subject = self._matcher.any_subject(frame)
        for exchange in recorded.candidates(frame, identifiers, any_subject=any_subject):
            new = LearnedPairs()
            if self._matcher.differs(exchange.frame, frame, new) is None and self._in_turn(exchange):
                return exchange, new
        bare = frame._replace(reply=b"")
        for connection in self._siblings(recorded, frame, clients):
            for exchange in connection.candidates(frame, identifiers, any_subject=any_subject):
                new = LearnedPairs()
                same = is_like(exchange, frame) and not self._matcher.differs(
                    exchange.frame._replace(reply=b""), bare, new
                )
                if same and self._in_turn(exchange):
                    return exchange, new
        return None

    def _in_turn(self, exchange: RecordedExchange) -> bool:
        """Tell whether those before it on its subject and connection have happened, where that counts."""
        if "order" not in self._matcher.options.match_on or exchange.kind is not FrameKind.CHANGE:
            return True
        queue = self._conversation.connections[exchange.conn].exchanges[exchange.key]
        return exchange is next(one for one in queue if one.frame.subject == exchange.frame.subject)

    def _siblings(
        self, recorded: RecordedConnection, frame: Frame, clients: Mapping[int, Client]
    ) -> Iterator[RecordedConnection]:
        """Yield the connections of the same client name: workers of one kind share their work at random.

        Their clients have to be there, unless it does not count which client sends a frame.
        """
        if frame.op == Op.SUB:  # messages would go to the other one
            return
        there: set[int | None] = set(clients)
        if any(one.recorded is None and one.connect.name == recorded.name for one in clients.values()):
            there.add(None)  # it has sent nothing yet
        any_client = "client" not in self._matcher.options.match_on
        for other in self._conversation.connections.values():
            named = other is not recorded and other.name == recorded.name
            if named and (any_client or other.client_id in there):
                yield other

    def move(self, client: Client, frame: Frame) -> bool:
        """Bind an uncommitted client to another recorded connection that fits all its frames.

        Returns whether it moved; its history is to be played again then.
        """
        now = client.recorded
        if now is None or client.committed or len(client.history) >= HISTORY:
            return False
        frames = [*client.history, frame]
        # The pairs of the wrong connection would keep the right one from matching.
        identifiers = self._matcher.identifiers
        identifiers.forget(client.learned)
        other = self._choose(client, frames)
        if other is None or self._fits(other, frames) < len(frames):
            identifiers.learn(client.learned)
            return False
        for exchange in client.used:
            self._conversation.give_back(exchange)
        client.used, client.learned = [], LearnedPairs()
        client.sids.clear()
        client.inboxes.clear()
        now.client_id, other.client_id, client.recorded = None, client.id, other
        return True
