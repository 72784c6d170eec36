"""Polls that come more often than recorded, or at other times.

Such a request for information gets the last answer again, such a pull request stands until the live program
has its answer or its time is over.  A recorded poll is due when the clients have made all changes before it:
else its answer would come from the future.  A read of a subject is due while the publish that it shows is the
last one on this subject: what other tasks of a program do meanwhile is no change to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from natsproxy.replay.conversation.exchanges import RecordedConnection, RecordedExchange, key_of
from natsproxy.replay.conversation.frame_kind import POLLS, FrameKind
from natsproxy.replay.conversation.identifier_map import LearnedPairs
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.recorded_conversation import RecordedConversation
from natsproxy.replay.server_playback.binding import Binder, Client
from natsproxy.replay.server_playback.delivery import Delivery
from natsproxy.wire.frames import Frame


class Repeats:
    """Answers repeated polls.  clients: the live clients, by number."""

    def __init__(
        self,
        conversation: RecordedConversation,
        matcher: Matcher,
        binder: Binder,
        delivery: Delivery,
        clients: Mapping[int, Client],
    ) -> None:
        self._conversation = conversation
        self._matcher = matcher
        self._binder = binder
        self._delivery = delivery
        self._clients = clients

    def may_repeat(self, kind: FrameKind) -> bool:
        """Tell whether frames of a kind may come more or less often than recorded."""
        return kind in POLLS and self._matcher.options.allow_repeats

    def find(
        self, recorded: RecordedConnection | None, frame: Frame, kind: FrameKind
    ) -> tuple[RecordedExchange, LearnedPairs] | None:
        """Return the recorded frame that agrees with a live one: of polls the first that is due.

        A pull that asked for another number of messages may be due where the one that is equal is not, and of
        reads that are equal a later one.
        """
        found = self._binder.find(recorded, frame, self._clients)
        if recorded is None or found is None or not self.may_repeat(kind) or self._is_due(found[0]):
            return found
        seen = self._matcher.seen(frame)
        for exchange in self._due(recorded, seen, kind):
            new = LearnedPairs()
            if self._matcher.differs(exchange.frame, seen, new) is None:
                return exchange, new
        return found

    def _due(self, recorded: RecordedConnection, seen: Frame, kind: FrameKind) -> Iterator[RecordedExchange]:
        if kind is FrameKind.READ:
            return filter(self._is_due, recorded.equal(seen, self._matcher.identifiers))
        return itertools.takewhile(self._is_due, recorded.exchanges.get(key_of(seen), ()))

    def answers(
        self,
        client: Client,
        recorded: RecordedConnection,
        found: RecordedExchange | None,
        frame: Frame,
        kind: FrameKind,
        now: int,
    ) -> bool:
        """Answer a poll as one before it; return False where `found` has to, or the frame is no poll.

        found: the recorded frame that agrees.
        """
        if not self.may_repeat(kind) or (found is not None and self._is_due(found)):
            return False
        past = self._past(recorded, kind, frame)
        if past is None:
            return False
        client.committed = True
        self._delivery.stands(client, recorded, past, frame, now, repeats=True)
        self._delivery.answer_again(client, past, frame)
        return True

    def _is_due(self, exchange: RecordedExchange) -> bool:
        if exchange.reads:
            due = self._conversation.stored.is_due(exchange)
            if due is not None:
                return due
        change = self._conversation.next_change(self._clients.keys())
        return change is None or exchange.seq < change

    def _past(self, recorded: RecordedConnection, kind: FrameKind, frame: Frame) -> RecordedExchange | None:
        """Return the last poll that asked the same; any pull request at its consumer does."""
        bare = self._matcher.seen(frame)._replace(reply=b"")
        for exchange in self._conversation.past_polls.of(recorded.conn, key_of(bare)):
            known = exchange.frame._replace(reply=b"")
            if kind is FrameKind.PULL or self._matcher.differs(known, bare, LearnedPairs()) is None:
                return exchange
        return None

    def fulfil(self, recorded: RecordedConnection, now: int) -> None:
        """Find recorded requests for the pull requests that stand, now that the clients made a change."""
        for standing in self._delivery.standing.unrecorded(recorded):
            found = self.find(recorded, standing.frame, FrameKind.PULL)
            if found is not None and self._is_due(found[0]):
                exchange, new = found
                self._matcher.identifiers.learn(new)
                standing.repeats = False
                self._delivery.caused(self._conversation.use(exchange, standing.frame, now), now)
