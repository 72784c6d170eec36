"""Held bytes of one direction: delays, reordering, and links that are bent.

Law: order belongs to the direction.  An item waits for its own time and for all items before it, unless it
may be overtaken.  Items are whole frames, or the growing head of one large frame (`open`), behind which
everything waits.  The outbox exists only while something is held or the link is bent; what it holds is
counted in bytes, and above the limit its sender is no longer read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from natsproxy.rules.seam import Shape

PLAIN = Shape()


@dataclass(slots=True, eq=False)
class Item:
    """Something to be sent: data, when at the earliest, and what the record of it will say."""

    parts: list[bytes]
    due: int
    frames: int
    ops: int
    in_first: int | None
    in_t: int | None
    cause: str | None = None
    of: int | None = None
    overtake: bool = False
    defer: int = 0
    open: bool = False
    finish: bool = False
    size: int = field(default=0)


class Outbox:
    """The queue of one direction."""

    def __init__(self) -> None:
        self.shape = PLAIN
        self.bytes = 0
        self._queue: deque[Item] = deque()
        self._aside: list[Item] = []  # may be overtaken: sent when due, wherever the queue is
        self._carry: deque[memoryview] = deque()  # released frames that the bent link has not taken yet
        self._credit_at = 0  # when the link is free for the next slice

    @property
    def active(self) -> bool:
        """Whether new frames must queue here."""
        return bool(self._queue or self._aside or self._carry) or self.shape is not PLAIN

    def put(self, item: Item) -> None:
        """Queue an item behind the others."""
        item.size = sum(map(len, item.parts))
        item.due += self.shape.delay
        self.bytes += item.size
        (self._aside if item.overtake or item.defer else self._queue).append(item)

    def grow(self, item: Item, data: bytes, *, last: bool) -> None:
        """Add bytes to the open item."""
        item.parts.append(data)
        item.size += len(data)
        self.bytes += len(data)
        item.open = not last

    def passed(self, frames: int) -> None:
        """Note that frames went by: deferred items count them."""
        for item in self._aside:
            if item.defer > 0:
                item.defer -= frames
                if item.defer <= 0:
                    item.due = 0

    def release(self, now: int) -> Iterator[Item]:
        """Yield the items whose time has come, in the order in which they leave."""
        if self.shape.paused:
            return
        for item in sorted((item for item in self._aside if item.due <= now), key=lambda item: item.due):
            if item.open:
                continue
            self._aside.remove(item)
            yield self._gone(item)
        while self._queue and self._queue[0].due <= now and not self._queue[0].open:
            item = self._queue.popleft()
            yield self._gone(item)
            self.passed(item.frames)

    def _gone(self, item: Item) -> Item:
        self.bytes -= item.size
        return item

    def bend(self, data: bytes | memoryview) -> None:
        """Give released bytes to the link's slicer and rate limit."""
        self._carry.append(memoryview(data))
        self.bytes += len(data)

    @property
    def bent(self) -> bool:
        """Whether released bytes go through `bend`."""
        return bool(self._carry) or self.shape.rate is not None or self.shape.slice_size > 0

    def slices(self, now: int) -> Iterator[memoryview]:
        """Yield what the bent link takes now."""
        shape = self.shape
        while self._carry and self._credit_at <= now and not shape.paused:
            piece = self._carry[0]
            size = shape.slice_size or (max(1, shape.rate // 100) if shape.rate else len(piece))
            head, rest = piece[:size], piece[size:]
            if len(rest):
                self._carry[0] = rest
            else:
                self._carry.popleft()
            self.bytes -= len(head)
            cost = shape.slice_delay + (len(head) * 1_000_000_000 // shape.rate if shape.rate else 0)
            self._credit_at = max(self._credit_at, now - 20_000_000) + cost
            yield head

    def left(self) -> list[Item]:
        """Take out all items that have not been released."""
        items = [*self._queue, *self._aside]
        self._queue.clear()
        self._aside.clear()
        self.bytes = sum(map(len, self._carry))
        return items

    def next_due(self) -> int | None:
        """When (ns) something here may go next; None for nothing."""
        if self.shape.paused:
            return None
        times = [item.due for item in self._aside if not item.open]
        if self._queue and not self._queue[0].open:
            times.append(self._queue[0].due)
        if self._carry:
            times.append(self._credit_at)
        return min(times, default=None)
