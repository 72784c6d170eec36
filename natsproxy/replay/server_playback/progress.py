"""The progress of a playback: what of the recording was played, and what is left.

Exchanges and effects are kept until they are played: at most `window` bytes of frames, however large the
capture.  Each keeps its own bytes alive, not those of the record that it was read from.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.replay.conversation.exchanges import (
    Effect,
    ExchangeIndex,
    QueueKey,
    RecordedConnection,
    RecordedExchange,
    standalone,
)
from natsproxy.replay.conversation.frame_kind import POLLS, Consumer, FrameKind
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.server_playback.counts import Counts
from natsproxy.replay.server_playback.played import LastWrites, PlayedPoll, PlayedPolls, RecentExchanges
from natsproxy.wire.frames import Frame

WINDOW: Final = 64 << 20
AwaitedBy = bytes | Consumer
"""A subscription (its recorded sid) or a pull request at a consumer, for which a queue of effects waits."""


class Requester(NamedTuple):
    """The live client that gets an answer in place of the recorded one, its sid and its inbox."""

    client_id: int
    sid: bytes
    inbox: bytes


@dataclass(slots=True, eq=False)
class PendingEffect:
    """An effect that was not sent yet.

    pending_causes: the number of causes that have not happened.  caused_at: the time of the last cause (ns).
    due: the earliest time to send it (ns), None while it waits for a cause.  awaited: the playback and the
    end of its connection wait for it; False until the poll that it follows was sent.  live: the live publish
    that it is a copy of.  to: the client that sent the request, if that plays another connection.
    """

    effect: Effect
    pending_causes: int = 0
    caused_at: int = 0
    due: int | None = None
    awaited: bool = True
    live: Frame | None = None
    to: Requester | None = None


class UsedExchange(NamedTuple):
    """The facts of a used exchange that its effects need, also those that are read later.

    at: when it was used (ns).  reply: its recorded inbox.  requester: the client that sent it, if that plays
    another connection.
    """

    at: int
    reply: bytes = b""
    requester: Requester | None = None

    def cause(self, pending: PendingEffect) -> None:
        """Tell an effect that this cause of it has happened."""
        pending.caused_at = max(pending.caused_at, self.at)
        answer = pending.effect.frame
        if self.requester is not None and answer is not None and answer.subject == self.reply:
            pending.to = self.requester


@dataclass(slots=True, eq=False)
class ConnectionProgress:
    """The rest of a recorded connection that is not played yet, and the live client that plays it.

    unused: its exchanges that no live frame has matched.  queues: its effects in the order in which they must
    be sent, by `queue_key`.  waiting: keys of queues that wait, by what they wait for.  client_id: the live
    client, None if there is none.  left: that client has disconnected.  gives_away: its messages may go to
    other clients that pull.  sids: recorded sid to live sid; ended_sids: the same for the last subscriptions
    that ended.  unused_changes, unsent: the number of unused CHANGE exchanges and of unsent awaited effects.
    changes: unused CHANGE exchanges by seq, in order, except acks.
    """

    recorded: RecordedConnection
    unused: ExchangeIndex = field(default_factory=ExchangeIndex)
    queues: dict[QueueKey, deque[PendingEffect]] = field(default_factory=dict)
    waiting: dict[AwaitedBy, dict[QueueKey, None]] = field(default_factory=dict)
    client_id: int | None = None
    left: bool = False
    gives_away: bool = False
    sids: dict[bytes, bytes] = field(default_factory=dict)
    ended_sids: BoundedDict[bytes, bytes] = field(default_factory=BoundedDict)
    unused_changes: int = 0
    unsent: int = 0
    changes: OrderedDict[int, RecordedExchange] = field(default_factory=OrderedDict)

    @property
    def conn(self) -> ConnectionId:
        """The recorded connection."""
        return self.recorded.conn

    @property
    def name(self) -> str:
        """The client name of its CONNECT."""
        return self.recorded.name

    def put(self, exchange: RecordedExchange) -> None:
        """Add an exchange behind the others, or back in its place among them."""
        self.unused.put(exchange)
        if exchange.kind is FrameKind.CHANGE:
            self.unused_changes += 1
            # When a client acknowledges says nothing about its next request.
            if not exchange.frame.subject.startswith(b"$JS.ACK."):
                self._put_change(exchange)

    def _put_change(self, exchange: RecordedExchange) -> None:
        given_back = bool(self.changes) and next(reversed(self.changes)) > exchange.seq
        self.changes[exchange.seq] = exchange
        if given_back:
            self.changes = OrderedDict(sorted(self.changes.items()))

    def remove(self, exchange: RecordedExchange) -> None:
        """Mark an exchange as used."""
        self.unused.remove(exchange)
        if exchange.kind is FrameKind.CHANGE:
            self.unused_changes -= 1
            self.changes.pop(exchange.seq, None)

    def next_change(self) -> RecordedExchange | None:
        """Return the first unused CHANGE, None if all were used."""
        return next(iter(self.changes.values()), None)

    def shares_with(self, other: ConnectionProgress) -> bool:
        """Return whether both take messages from one consumer or queue group."""
        return not self.recorded.shares.keys().isdisjoint(other.recorded.shares)

    def live_sid(self, sid: bytes) -> bytes | None:
        """Return the live sid of a recorded subscription, also after it has ended; None before it is made."""
        return self.sids.get(sid) or self.ended_sids.get(sid)


class Progress:
    """The progress of all connections.

    recent, polls, writes: see `played.py`.  frames, played: the number of frames read, and played.  reached:
    the seq of the last recorded frame that happened live, and when it did (ns).  counts: client frames by
    subject.  undelivered: the number of recorded server frames whose client had disconnected.
    """

    def __init__(self, recording: Recording, *, window: int = WINDOW) -> None:
        self.recording = recording
        self.connections: dict[ConnectionId, ConnectionProgress] = {}
        self.recent = RecentExchanges()
        self.polls = PlayedPolls()
        self.writes = LastWrites()
        self.frames = self.played = 0
        self.counts = Counts()
        self.undelivered = 0
        self.reached: tuple[int, int] = (-1, 0)
        self._window = window
        self._size = 0
        self._ready: list[PendingEffect] = []
        self._effects: dict[int, list[PendingEffect]] = {}  # of unused exchanges, by their seq
        self._used: BoundedDict[int, UsedExchange] = BoundedDict()  # whose effects may follow

    # -- reading

    @property
    def has_room(self) -> bool:
        """True when there is more to read, and the window has room for it."""
        return self._size < self._window and not self.recording.whole

    def take_ready(self) -> list[PendingEffect]:
        """Read on; return, once, the effects whose causes had all happened before they were read."""
        self.fill()
        if not self._ready:
            return []
        ready, self._ready = self._ready, []
        return ready

    def fill(self) -> None:
        """Read on until the window is full."""
        while self.has_room:
            entry = self.recording.read()
            self._join()
            if entry is None:
                break
            self._size += entry.size
            if isinstance(entry, RecordedExchange):
                self.frames += 1
                self.counts.of(entry.frame.subject).recorded += 1
                self.connections[entry.conn].put(entry)
                self._effects[entry.seq] = []
            else:
                self.frames += entry.frame is not None
                pending = self._add(entry)
                if not pending.pending_causes:
                    self._ready.append(pending)

    def _join(self) -> None:
        """Add the connections that were just read, in recorded order."""
        recorded = self.recording.connections
        if len(recorded) > len(self.connections):
            for conn in list(islice(recorded, len(self.connections), None)):  # both are in one order
                self.connections[conn] = ConnectionProgress(recorded[conn])

    def _add(self, effect: Effect) -> PendingEffect:
        pending = PendingEffect(effect)
        for seq in effect.causes:
            waiting = self._effects.get(seq)
            if waiting is not None:
                waiting.append(pending)
                pending.pending_causes += 1
            elif seq in self._used:  # that cause has happened already
                self._used[seq].cause(pending)
        connection = self.connections[effect.conn]
        connection.queues.setdefault(effect.queue, deque()).append(pending)
        pending.awaited = not (effect.follows_poll and pending.pending_causes)
        connection.unsent += pending.awaited
        if effect.follows_poll and pending.awaited and effect.frame is not None:
            self.polls.add_answer(effect.causes[0], effect.frame)
        return pending

    # -- playing

    def use(
        self,
        exchange: RecordedExchange,
        live_frame: Frame,
        now: int,
        requester: Requester | None = None,
    ) -> list[PendingEffect]:
        """Mark an exchange as used; return the effects that waited for it.

        live_frame: the frame that matched it; copies of a publish carry its body.  requester: the client
        that gets the answers in place of the recorded one.
        """
        effects = self._effects.pop(exchange.seq)
        self.reach(exchange.seq, now)
        self.connections[exchange.conn].remove(exchange)
        used = UsedExchange(now) if requester is None else UsedExchange(now, exchange.frame.reply, requester)
        if not self.recording.whole:  # effects of it may come
            self._used[exchange.seq] = used
        self.recent.add(exchange)
        self.writes.add(exchange)
        if exchange.kind in POLLS:
            self.polls.add(PlayedPoll(exchange, _answers(effects)))
        self.played += 1
        self._size -= exchange.size
        alone = None
        for pending in effects:
            if pending.effect.copy_of is exchange:
                pending.live = alone = alone or standalone(live_frame)
            pending.pending_causes -= 1
            used.cause(pending)
            if not pending.awaited:
                pending.awaited = True
                self.connections[pending.effect.conn].unsent += 1
        return effects

    def give_back(self, exchange: RecordedExchange, effects: list[PendingEffect]) -> None:
        """Undo `use` of an exchange and the sending of its effects: the wrong client had matched it."""
        connection = self.connections[exchange.conn]
        for pending in effects:
            self._take_back(connection, pending)
        connection.put(exchange)  # exchanges of one key are matched in recorded order
        connection.sids.pop(exchange.frame.sid, None)
        connection.ended_sids.pop(exchange.frame.sid, None)
        self._effects[exchange.seq] = effects
        self._used.pop(exchange.seq, None)
        self.recent.give_back(exchange)
        self.polls.give_back(exchange)
        self.played -= 1
        self._size += exchange.size

    def _take_back(self, connection: ConnectionProgress, pending: PendingEffect) -> None:
        effect = pending.effect
        pending.pending_causes += 1
        pending.due = pending.live = pending.to = None
        queue = connection.queues.setdefault(effect.queue, deque())
        if pending in queue:
            connection.unsent -= pending.awaited
        else:
            queue.append(pending)
            self.played -= 1
            self._size += effect.size
        pending.awaited = not effect.follows_poll
        connection.unsent += pending.awaited

    def pass_over(self, pending: PendingEffect, now: int) -> None:
        """Mark an effect as sent that its client already got for another exchange."""
        effect = pending.effect
        queues = self.connections[effect.conn].queues
        queues[effect.queue].remove(pending)
        if not queues[effect.queue]:
            del queues[effect.queue]
        self.sent(pending, now)

    def sent(self, pending: PendingEffect, now: int) -> None:
        """Mark an effect as sent."""
        effect = pending.effect
        self.reach(effect.seq, now)
        self.connections[effect.conn].unsent -= pending.awaited
        self.played += 1
        self._size -= effect.size

    def reach(self, seq: int, now: int) -> None:
        """Record that the frame with this seq has happened live."""
        if seq > self.reached[0]:
            self.reached = (seq, now)

    # -- questions

    def next_change(self, playing: Collection[int]) -> int | None:
        """Return the seq of the first CHANGE that the live clients `playing` still have to send."""
        left = [one.next_change() for one in self.connections.values() if one.client_id in playing]
        return min((one.seq for one in left if one is not None), default=None)

    @property
    def done(self) -> bool:
        """True when every recorded client frame came and every recorded server frame was sent."""
        return self.recording.whole and not any(
            one.unused_changes or one.unsent for one in self.connections.values()
        )


def _answers(effects: Iterable[PendingEffect]) -> list[Frame]:
    """Return the recorded answers to a poll among its effects."""
    return [one.effect.frame for one in effects if one.effect.follows_poll and one.effect.frame is not None]
