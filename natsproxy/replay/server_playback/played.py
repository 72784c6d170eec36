"""Bounded history of what was played: for reports, repeated polls and reads."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from typing import Final, NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.replay.conversation.exchanges import OVERHEAD, Key, RecordedExchange
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.identifier_map import INBOX
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_RECENT: Final = 1000
_RECENT_BYTES: Final = 8 << 20
POLLS_OF_A_KEY: Final = 8
_POLL_BYTES: Final = 32 << 20


class RecentExchanges(deque[RecordedExchange]):
    """The exchanges that were used last, so that a report can tell *used already* from *never recorded*.

    The newest stays, whatever its size.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def add(self, exchange: RecordedExchange) -> None:
        """Add the newest."""
        self.append(exchange)
        self._size += exchange.size
        while len(self) > _RECENT or (self._size > _RECENT_BYTES and len(self) > 1):
            self._size -= self.popleft().size

    def give_back(self, exchange: RecordedExchange) -> None:
        """Remove one that was not used after all."""
        if exchange in self:
            self.remove(exchange)
            self._size -= exchange.size


class PlayedPoll(NamedTuple):
    """A READ or PULL that was used.  answers: to a READ; some may be read later."""

    exchange: RecordedExchange
    answers: list[Frame]

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return self.exchange.size + sum(map(_size, self.answers))


def _size(answer: Frame) -> int:
    return answer.wire_size + OVERHEAD


class PlayedPolls:
    """The last polls that were used, by their connection and `key_of`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[ConnectionId, Key], deque[PlayedPoll]] = OrderedDict()
        self._by_seq: dict[int, PlayedPoll] = {}
        self._size = 0
        self._asked: BoundedDict[tuple[ConnectionId, Key], None] = BoundedDict()

    def add(self, poll: PlayedPoll) -> None:
        """Add the newest; the least recently used keys are evicted."""
        key = poll.exchange.conn, poll.exchange.key
        queue = self._kept.setdefault(key, deque())
        self._kept.move_to_end(key)
        queue.append(poll)
        self._by_seq[poll.exchange.seq] = poll
        self._asked[key] = None
        self._size += poll.size
        if len(queue) > POLLS_OF_A_KEY:
            self._forget(queue.popleft())
        self._trim()

    def add_answer(self, seq: int, answer: Frame) -> None:
        """Add an answer that was read after its poll was used."""
        poll = self._by_seq.get(seq)
        if poll is not None:
            poll.answers.append(answer)
            self._size += _size(answer)
            self._trim()

    def of(self, conn: ConnectionId, key: Key) -> Collection[PlayedPoll]:
        """Return those that are kept of a key, the newest first."""
        return tuple(reversed(self._kept.get((conn, key), ())))

    def asked(self, conn: ConnectionId, key: Key) -> bool:
        """Return whether there was one, also if it was evicted."""
        return (conn, key) in self._asked

    def give_back(self, exchange: RecordedExchange) -> None:
        """Remove one that was not used after all."""
        poll = self._by_seq.get(exchange.seq)
        if poll is not None:
            self._kept[exchange.conn, exchange.key].remove(poll)
            self._forget(poll)

    def _trim(self) -> None:
        while self._size > _POLL_BYTES and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            for poll in gone:
                self._forget(poll)

    def _forget(self, poll: PlayedPoll) -> None:
        del self._by_seq[poll.exchange.seq]
        self._size -= poll.size


class LastWrites:
    """The last publish that was made on each subject.

    The answer to a recorded read of a subject is right while the publish that it shows is the last one there,
    whatever other clients and tasks have done.
    """

    def __init__(self) -> None:
        self._last: BoundedDict[bytes, int] = BoundedDict()

    def add(self, exchange: RecordedExchange) -> None:
        """Note a recorded frame that was used, if it is a write."""
        frame = exchange.frame
        if (
            exchange.kind is FrameKind.CHANGE
            and frame.op is not Op.SUB
            and not frame.subject.startswith((b"$JS.", INBOX))
            and not exchange.unstored
        ):
            self._last[frame.subject] = exchange.seq

    def shows_last(self, read: RecordedExchange) -> bool | None:
        """Return whether a recorded read shows the last write, None if unknown."""
        last = self._last.get(read.reads)
        if last is None:
            return None
        return True if last == read.shows else None if last < read.seq else False
