"""Exchanges that have happened and are still of use, to reports and to repeated polls, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from typing import Final

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.replay.conversation.exchanges import OVERHEAD, Key, RecordedExchange

_USED: Final = 1000
_USED_BYTES: Final = 8 << 20
_POLLS_OF_A_KEY: Final = 8
_POLL_BYTES: Final = 32 << 20


def _size(exchange: RecordedExchange) -> int:
    if not exchange.answers:  # nearly always
        return exchange.size
    return exchange.size + sum(answer.wire_size + OVERHEAD for answer in exchange.answers)


class Used(deque[RecordedExchange]):
    """The last exchanges that happened; the newest stays, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def add(self, exchange: RecordedExchange) -> None:
        """Add the newest."""
        self.append(exchange)
        self._size += _size(exchange)
        while len(self) > _USED or (self._size > _USED_BYTES and len(self) > 1):
            self._size -= _size(self.popleft())

    def give_back(self, exchange: RecordedExchange) -> None:
        """Forget one that has not happened after all."""
        if exchange in self:
            self.remove(exchange)
            self._size -= _size(exchange)


class PastPolls:
    """The last READs and PULLs that happened, by their connection and `key_of`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[ConnectionId, Key], deque[RecordedExchange]] = OrderedDict()
        self._size = 0
        self._asked: BoundedDict[tuple[ConnectionId, Key], None] = BoundedDict()

    def add(self, exchange: RecordedExchange) -> None:
        """Add the newest; those of the keys that were not used for longest go."""
        key = exchange.conn, exchange.key
        queue = self._kept.setdefault(key, deque())
        self._kept.move_to_end(key)
        queue.append(exchange)
        self._asked[key] = None
        self._size += _size(exchange)
        if len(queue) > _POLLS_OF_A_KEY:
            self._size -= _size(queue.popleft())
        while self._size > _POLL_BYTES and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._size -= sum(map(_size, gone))

    def of(self, conn: ConnectionId, key: Key) -> Collection[RecordedExchange]:
        """Return those that are left of a key, the newest first."""
        return tuple(reversed(self._kept.get((conn, key), ())))

    def asked(self, conn: ConnectionId, key: Key) -> bool:
        """Tell whether there was one, be it forgotten or not."""
        return (conn, key) in self._asked

    def give_back(self, exchange: RecordedExchange) -> None:
        """Forget one that has not happened after all."""
        queue = self._kept.get((exchange.conn, exchange.key), deque())
        if exchange in queue:
            queue.remove(exchange)
            self._size -= _size(exchange)
