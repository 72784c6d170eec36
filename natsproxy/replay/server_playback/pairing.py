"""Pairing of live clients with recorded connections, and of their frames with recorded exchanges.

The client's own frames decide.  Candidates are the recorded connections of its client name that nobody plays;
if there are none, those that have an exchange for one of its frames.  The best is the one that matches most
frames of its first batch with a SUB or a publish; of equal ones the one at its place in the order in which
clients of that name connected, then the earliest.

Connections of one client name are workers of one kind: what one of them was to publish or to request, another
one may.  A frame that does not fit may still move a client to another recorded connection that fits its whole
history, or swap two of them, as long as nothing but answers to READs was sent for their frames: later the
client would notice.

Polls may come more or less often than recorded, or at other times.  A recorded poll is due when the clients
have made all changes before it: else its answer would come from the future.  A read of a subject is due while
the publish that it shows is the last one on this subject, whatever other tasks of the program do meanwhile.
While none is due, a poll counts as a repetition of the last equal one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from natsproxy.replay.conversation.exchanges import RecordedExchange, key_of
from natsproxy.replay.conversation.frame_kind import POLLS, FrameKind, delivery_request
from natsproxy.replay.conversation.identifier_map import LearnedPairs
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.server_playback.client import HISTORY, Client, Used
from natsproxy.replay.server_playback.effect_source import ClientFrame
from natsproxy.replay.server_playback.played import PlayedPoll
from natsproxy.replay.server_playback.progress import ConnectionProgress, PendingEffect, Progress
from natsproxy.replay.server_playback.turns import Turns
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op


class Match(NamedTuple):
    """A recorded exchange that agrees with a live frame, and the pairs of values learned from that."""

    exchange: RecordedExchange
    learned: LearnedPairs


class Pairing:
    """Finds what live frames match.  clients: the live ones, by number."""

    def __init__(self, progress: Progress, matcher: Matcher, clients: Mapping[int, Client]) -> None:
        self._progress = progress
        self._matcher = matcher
        self._clients = clients
        self._turns = Turns(progress, clients.keys())

    # -- connections

    def bind(self, client: Client) -> None:
        """Let a client play the connection that fits its held frames best; none if no connection is left."""
        best = self._choose(client, client.held)
        if best is not None:
            client.play(best)

    def _choose(self, client: Client, frames: list[Frame]) -> ConnectionProgress | None:
        free = [
            one
            for one in self._progress.connections.values()
            if one.client_id is None and (one.unused or one.unsent)
        ]
        named = [one for one in free if one.name == client.connect.name]
        if len(named) > 1:
            named.sort(key=self._at_its_place(client))
        # The same name is enough; without it, at least one frame has to match.
        best, most = None, -1 if named else 0
        for connection in named or free:
            fits = self._fits(connection, frames)
            if fits > most:
                best, most = connection, fits
        return best

    def _at_its_place(self, client: Client) -> Callable[[ConnectionProgress], tuple[bool, int]]:
        """Return a sort key for the recorded connections of a client's name.

        First comes the one at the same place in the order of connecting, then the earliest.  First frames of
        several clients may come in any order, but a program makes its connections one by one.
        """
        name = client.connect.name
        accepted = sorted(
            (one for one in self._progress.connections.values() if one.name == name),
            key=lambda one: one.conn[1:],
        )
        at = {one.conn: place for place, one in enumerate(accepted)}
        before = {one.client_id for one in accepted if one.client_id is not None}
        before |= {
            one.id for one in self._clients.values() if one.playing is None and one.connect.name == name
        }
        place = sum(one < client.id for one in before)
        return lambda one: (at[one.conn] != place, at[one.conn])

    def _fits(self, connection: ConnectionProgress, frames: list[Frame]) -> int:
        """Count the frames that a recorded connection has exchanges for; learn nothing."""
        taken: set[int] = set()
        learned, identifiers = LearnedPairs(), self._matcher.identifiers
        for frame in map(self._matcher.seen, frames):
            any_subject = self._matcher.any_subject(frame)
            for exchange in connection.unused.candidates(frame, identifiers, any_subject=any_subject):
                if exchange.seq in taken:
                    continue
                trial = learned.copy()
                # The inbox of a subscription is known later, by its request.
                inbox = exchange.kind is FrameKind.INBOX
                if inbox or not self._matcher.differs(exchange.frame, frame, trial):
                    taken.add(exchange.seq)
                    learned = trial
                    break
        return len(taken)

    def is_foreign(self, client: Client, found: Match | PlayedPoll | None, kind: FrameKind) -> bool:
        """Return whether a frame does not belong to the connection that its client plays."""
        if kind is FrameKind.INBOX or client.playing is None:
            return False
        return found is None or found.exchange.conn != client.playing.conn

    def move(self, client: Client, frame: Frame) -> list[Client]:
        """Let an uncommitted client play another recorded connection, one that fits all its frames.

        It may swap with another uncommitted client of its name.  Returns the clients that moved, whose
        histories have to be matched again.
        """
        if not _may_move(client):
            return []
        frames = [*client.history, frame]
        # The pairs of the wrong connection would keep the right one from matching.
        identifiers = self._matcher.identifiers
        identifiers.forget(client.learned)
        other = self._choose(client, frames)
        if other is None or self._fits(other, frames) < len(frames):
            identifiers.learn(client.learned)
            return self._change_places(client, frames)
        self._give_back(client)
        client.play(other)
        return [client]

    def _change_places(self, client: Client, frames: list[Frame]) -> list[Client]:
        for other in self._clients.values():
            if other is client or not _may_move(other) or other.connect.name != client.connect.name:
                continue
            mine, its = client.playing, other.playing
            assert mine is not None
            assert its is not None
            self._matcher.identifiers.forget(client.learned)
            self._matcher.identifiers.forget(other.learned)
            if self._fit_anew(its, other, frames) and self._fit_anew(mine, client, other.history):
                for one in (client, other):
                    self._give_back(one)
                client.play(its)
                other.play(mine)
                return [other, client]
            self._matcher.identifiers.learn(other.learned)
            self._matcher.identifiers.learn(client.learned)
        return []

    def _fit_anew(self, connection: ConnectionProgress, player: Client, frames: list[Frame]) -> bool:
        """Return whether frames would fit a recorded connection if its client had used nothing of it."""
        used = [one.exchange for one in player.used if one.exchange.conn == connection.conn]
        for exchange in used:
            connection.unused.put(exchange)
        fits = self._fits(connection, frames) == len(frames)
        for exchange in used:
            connection.unused.remove(exchange)
        return fits

    def _give_back(self, client: Client) -> None:
        for exchange, effects in client.used:
            self._progress.give_back(exchange, effects)

    # -- exchanges

    def match(self, client: Client, frame: Frame, kind: FrameKind) -> Match | PlayedPoll | None:
        """Return what a live frame matches: an unused exchange, an earlier poll (repeated), or None.

        A subscription to an inbox is matched later, when a request has named it (`named_inboxes`).
        """
        playing = client.playing
        if playing is None or kind is FrameKind.INBOX:
            return None
        if not self.may_repeat(kind):
            return self._first(playing, frame)
        found = self.in_turn(client, frame, kind)
        return found or self._earlier_poll(playing, frame, kind) or self._first(playing, frame)

    def in_turn(self, client: Client, frame: Frame, kind: FrameKind) -> Match | None:
        """Return the unused exchange of its own connection that a poll matches, if that is due."""
        playing, seen = client.playing, self._matcher.seen(frame)
        if playing is None:
            return None
        first = self._own(playing, seen)
        if first is None or self._turns.is_due(first.exchange):
            return first
        for exchange in self._turns.due(playing, seen, kind, self._matcher.identifiers):
            learned = self._matcher.agree(exchange.frame, seen)
            if learned is not None:
                return Match(exchange, learned)
        return first if self._turns.is_own_next(client, first.exchange) else None

    def _earlier_poll(self, playing: ConnectionProgress, frame: Frame, kind: FrameKind) -> PlayedPoll | None:
        """Return the last equal poll; pull requests at one consumer are equal."""
        bare = self._matcher.seen(frame)._replace(reply=b"")
        for poll in self._progress.polls.of(playing.conn, key_of(bare)):
            known = poll.exchange.frame._replace(reply=b"")
            if kind is FrameKind.PULL or self._matcher.agree(known, bare, again=True) is not None:
                return poll
        return None

    def may_repeat(self, kind: FrameKind) -> bool:
        """Return whether frames of a kind may come more or less often than recorded."""
        return kind in POLLS and self._matcher.options.allow_repeats

    def _first(self, playing: ConnectionProgress, frame: Frame) -> Match | None:
        """Return the first exchange that agrees: of its own connection, else of another worker."""
        seen = self._matcher.seen(frame)
        return self._own(playing, seen) or self._of_a_sibling(playing, seen)

    def _own(self, playing: ConnectionProgress, seen: Frame) -> Match | None:
        any_subject, identifiers = self._matcher.any_subject(seen), self._matcher.identifiers
        for exchange in playing.unused.candidates(seen, identifiers, any_subject=any_subject):
            learned = self._matcher.agree(exchange.frame, seen)
            if learned is not None and self._in_order(exchange):
                return Match(exchange, learned)
        return None

    def _of_a_sibling(self, playing: ConnectionProgress, seen: Frame) -> Match | None:
        any_subject, identifiers = self._matcher.any_subject(seen), self._matcher.identifiers
        bare = seen._replace(reply=b"")
        for connection in self._siblings(playing, seen):
            for exchange in connection.unused.candidates(seen, identifiers, any_subject=any_subject):
                if not _is_like(exchange, seen):
                    continue
                learned = self._matcher.agree(exchange.frame._replace(reply=b""), bare)
                if learned is not None and self._in_order(exchange):
                    return Match(exchange, learned)
        return None

    def _in_order(self, exchange: RecordedExchange) -> bool:
        """Return whether the exchanges before it on its subject were used, if their order counts."""
        if "order" not in self._matcher.options.match_on or exchange.kind is not FrameKind.CHANGE:
            return True
        queue = self._progress.connections[exchange.conn].unused.by_key[exchange.key]
        return exchange is next(one for one in queue if one.frame.subject == exchange.frame.subject)

    def _siblings(self, playing: ConnectionProgress, frame: Frame) -> Iterator[ConnectionProgress]:
        """Yield the connections of workers that share their work at random.

        They have the same client name, or take messages from one consumer or queue group.  Their clients must
        have connected, unless it does not matter which client sends a frame.
        """
        if frame.op == Op.SUB:  # messages would go to the other one
            return
        there: set[int | None] = set(self._clients)
        if any(one.playing is None and one.connect.name == playing.name for one in self._clients.values()):
            there.add(None)  # it has sent nothing yet
        any_client = "client" not in self._matcher.options.match_on
        for other in self._progress.connections.values():
            present = any_client or other.client_id in there
            named = present and other.name == playing.name
            gone = other.left or other.gives_away
            if other is not playing and (named or ((present or gone) and other.shares_with(playing))):
                yield other

    # -- use

    def use(self, client: Client, match: Match, frame: Frame, kind: FrameKind, now: int) -> ClientFrame:
        """Use the exchange that a frame of a client matched, and learn the pairs of values."""
        exchange, learned = match
        self._matcher.identifiers.learn(learned)
        client.note_act(exchange)
        others = client.playing is not None and exchange.conn != client.playing.conn
        requester = client.requester(frame) if others and frame.reply else None
        effects = self._progress.use(exchange, frame, now, requester)
        if not client.committed:
            client.note_use(Used(exchange, effects), learned, whole=self._progress.recording.whole)
        if frame.op == Op.SUB:
            client.matched_subscription(exchange, frame)
        return ClientFrame(client, frame, kind, now, exchange, delivery_request(exchange.frame), effects)

    def repeat(
        self, client: Client, poll: PlayedPoll, frame: Frame, kind: FrameKind, now: int
    ) -> ClientFrame:
        """Count a frame of a client as a repetition of an earlier poll."""
        client.committed = True
        client.note_act(poll.exchange)
        request = delivery_request(poll.exchange.frame)
        return ClientFrame(client, frame, kind, now, poll.exchange, request, again=poll)

    def fulfil(self, match: Match, frame: Frame, now: int) -> list[PendingEffect]:
        """Use the recorded request that an open live one matches; return the effects that waited for it."""
        self._matcher.identifiers.learn(match.learned)
        return self._progress.use(match.exchange, frame, now)

    def named_inboxes(self, now: int) -> Iterator[ClientFrame]:
        """Use the recorded subscriptions of inboxes that requests have named; yield them one by one."""
        for client in self._clients.values():
            for sid, (frame, _) in list(client.inboxes.items()) if client.playing else ():
                assert client.playing is not None
                subject = self._matcher.identifiers.to_recorded(frame.subject)
                exchange = client.playing.unused.inbox(subject)
                if exchange is not None:
                    client.inboxes.pop(sid, None)
                    match = Match(exchange, LearnedPairs())
                    yield self.use(client, match, frame, FrameKind.INBOX, now)

    def unnamed_inboxes(self, client: Client, now: int) -> Iterator[ClientFrame]:
        """Use a recorded subscription for each unnamed inbox; one without is unrecorded."""
        inboxes, client.inboxes = client.inboxes, {}
        for frame, then in inboxes.values():
            match = None if client.playing is None else self._first(client.playing, frame)
            if match is None:
                yield ClientFrame(client, frame, FrameKind.INBOX, now)
            else:
                yield self.use(client, match, frame, FrameKind.INBOX, then)


def _may_move(client: Client) -> bool:
    return client.playing is not None and not client.committed and len(client.history) < HISTORY


def _is_like(exchange: RecordedExchange, frame: Frame) -> bool:
    """Return whether a recorded publish or request of another client may be this live one."""
    return bool(exchange.frame.reply) == bool(frame.reply) and delivery_request(exchange.frame) is None
