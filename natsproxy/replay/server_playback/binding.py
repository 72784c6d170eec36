"""Which recorded connection a live client plays.

It is decided by what the client says and does: of the recorded connections that nobody plays, those with its
client name (where none has it, those that have an exchange for something it sent); of these, the one that
matches most of what it has sent in its first batch with a SUB or a publish; then the earliest.  As long as a
client was told nothing, a frame that does not fit may still move it to another recorded connection that fits
its whole history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from natsproxy.protocol.connect import DEFAULTS, Connect
from natsproxy.replay.conversation.exchanges import Exchange, Recorded, RecordedConversation, key_of
from natsproxy.replay.conversation.identities import Pairs
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.wire.frames import Frame

HISTORY: Final = 64


@dataclass(slots=True)
class Client:
    """A client that is here.

    hello: its CONNECT.  subs: the subjects of its subscriptions, by sid.  sids: its sids, and what they are
    called in the recording.  held: frames that wait for it to be bound.  history: its first frames.  used,
    learned: the exchanges that they matched, the identifiers learned.  told: somebody was told something
    because of it; it cannot become another recorded connection.
    """

    id: int
    connect: Connect = DEFAULTS
    hello: Frame | None = None
    recorded: Recorded | None = None
    subs: dict[bytes, bytes] = field(default_factory=dict)
    sids: dict[bytes, bytes] = field(default_factory=dict)
    held: list[Frame] = field(default_factory=list)
    history: list[Frame] = field(default_factory=list)
    used: list[Exchange] = field(default_factory=list)
    learned: Pairs = field(default_factory=dict)
    told: bool = False

    def remember(self, exchange: Exchange, new: Pairs) -> None:
        """Note what a frame of it matched, as long as it may have to be taken back."""
        if not self.told:
            self.told = bool(exchange.effects) or len(self.history) >= HISTORY
            self.used.append(exchange)
            self.learned |= new


class Binder:
    """Chooses recorded connections for clients."""

    def __init__(self, script: RecordedConversation, matcher: Matcher) -> None:
        self._script = script
        self._matcher = matcher

    def bind(self, client: Client) -> None:
        """Choose by what a client holds; it stays without a recorded connection where none is left."""
        best = self._choose(client, client.held)
        if best is not None:
            best.live, client.recorded = client.id, best

    def _choose(self, client: Client, frames: list[Frame]) -> Recorded | None:
        free = [r for r in self._script.connections.values() if r.live is None and (r.unused or r.unsent)]
        named = [r for r in free if r.name == client.connect.name]
        best, most = None, -1 if named else 0
        for recorded in named or free:
            fits = self._fits(recorded, frames)
            if fits > most:
                best, most = recorded, fits
        return best

    def _fits(self, recorded: Recorded, frames: list[Frame]) -> int:
        """Count the frames that a recorded connection has exchanges for; learn nothing."""
        taken: set[int] = set()
        new: Pairs = {}
        for frame in frames:
            for exchange in recorded.open.get(key_of(frame), ()):
                pairs = dict(new)
                if exchange.seq not in taken and not self._matcher.differs(exchange.frame, frame, pairs):
                    taken.add(exchange.seq)
                    new = pairs
                    break
        return len(taken)

    def move(self, client: Client, frame: Frame) -> bool:
        """Let a client that was told nothing play another recorded connection that fits all it has said.

        Its history is to be played again then.
        """
        now = client.recorded
        if now is None or client.told or len(client.history) >= HISTORY:
            return False
        talk = [*client.history, frame]
        identities = self._matcher.identities
        identities.forget(client.learned)
        other = self._choose(client, talk)
        if other is None or self._fits(other, talk) < len(talk):
            identities.learn(client.learned)
            return False
        for exchange in client.used:
            self._script.give_back(exchange)
        client.used, client.learned = [], {}
        client.sids.clear()
        now.live, other.live, client.recorded = None, client.id, other
        return True
