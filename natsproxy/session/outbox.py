"""Held bytes of one direction: delays, reordering, and slow links.

Each direction keeps its order: an item is sent when it is due and all items before it were sent, unless it
may be overtaken.  A paced item gets its time when it has become the first: of the connections that wait for
one limit each has one place in the queue for it, however much it holds.  Items are whole frames, or the
growing head of one large frame (`open`), which delays everything after it.  The outbox is in use only while
items wait, the link has conditions, or the peer takes no bytes; its bytes are counted, and above a limit
their sender is no longer read.

A native plane may hold the items in the place of the outbox while they are plain (`hand_over`): it sends them
by itself.  What it holds goes ahead of all that waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from natsproxy.rules.interface import LinkConditions
from natsproxy.session.values import UNLIMITED_WORK
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction, Op, op_mask
from natsproxy.wire.parse import frames

PLAIN = LinkConditions()
# An empty deque takes 760 bytes, and most connections never hold anything: they share these three.
_NO_ITEMS: Final[deque[Outgoing]] = deque()
_NO_BYTES: Final[deque[memoryview]] = deque()
_NO_HEAP: Final[list[tuple[int, int, Outgoing]]] = []
_NOTHING_AHEAD: Final = (0, 0)
OVERHEAD = 400
"""The memory that an item takes beside its data, bytes: counted too, since small frames are mostly that."""
_LOOKED_AT: Final = op_mask(Op.CONNECT, Op.INFO)  # for secrets, where they are recorded
_PART: Final = 4096  # shorter parts of an open item are joined: a peer may send its payload byte by byte


class Origin(NamedTuple):
    """The origin of frames that go out, for their record; the default is an injected frame.

    first, t: the ordinal of the first and their time on the other leg, None if they were not received so.
    of: the ordinal of the frame that they replace.  cause: the rule, or "proxy".  secret: another form of the
    frame is secret.
    """

    first: int | None = None
    t: int | None = None
    of: int | None = None
    cause: str | None = None
    secret: bool = False


@dataclass(slots=True, eq=False)
class Outgoing:
    """Bytes that wait to be sent.

    due: the earliest time (ns).  overtake: later items need not wait for it.  defer: the number of frames
    that go ahead.  paces: see `Decision`; paced: it had some.  open: more data is to come.  finish:
    half-close here.  gone: it was sent, and is still in a heap.  size: the bytes that are counted for it.
    """

    parts: list[bytes]
    frames: int
    ops: int
    origin: Origin
    due: int
    overtake: bool = False
    defer: int = 0
    paces: tuple[Callable[[int], int], ...] = ()
    paced: bool = False
    open: bool = False
    finish: bool = False
    gone: bool = False
    size: int = 0

    @property
    def plain(self) -> bool:
        """True if it has whole frames, as they came, and only its time and those before it keep it."""
        origin, other = self.origin, self.overtake or self.defer or self.paced or self.open or self.finish
        return not other and origin.first is not None and not origin.secret and not self.ops & _LOOKED_AT


class Outbox:
    """The queue of one direction.

    blocked: the peer takes no bytes for now, and nothing is released.  held: the peer is lost, and the items
    wait for another one.  bytes: those that wait, with `OVERHEAD`.  frames: those that wait.  ahead: the
    frames and bytes among them that a plane holds.  paced: the paced items that wait.
    """

    def __init__(self) -> None:
        self.conditions = PLAIN
        self.blocked = self.held = False
        self.bytes = self.frames = self.paced = 0
        self.ahead = _NOTHING_AHEAD
        self._queue: deque[Outgoing] = _NO_ITEMS
        self._aside = 0  # items that may be overtaken: they are sent when due, whatever the queue holds
        self._number = 0  # the sequence number of the next of them
        self._by_time = self._by_count = _NO_HEAP  # heaps of them; an item may be in both
        self._went = 0  # frames released, for deferred items
        self._carry: deque[memoryview] = _NO_BYTES  # the released item that the slow link has not taken yet
        self._credit_at = 0  # when the link is free for the next slice

    @property
    def active(self) -> bool:
        """True if new frames must queue here."""
        return self.waiting or self.conditions is not PLAIN

    @property
    def waiting(self) -> bool:
        """True if something waits, or the peer takes nothing."""
        here = self._queue or self._aside or self._carry or self.blocked or self.held  # not `handed_over`
        return bool(here) or self.ahead is not _NOTHING_AHEAD

    @property
    def handed_over(self) -> bool:
        """True if nothing waits here, and the peer takes bytes: a plane has all that waits."""
        return not (self._queue or self._aside or self._carry or self.blocked or self.held)

    @property
    def plain(self) -> bool:
        """True if a plane may hold what waits here."""
        if self._aside or self._carry or self.blocked or self.held or self.conditions is not PLAIN:
            return False
        return all(item.plain for item in self._queue)

    @property
    def incomplete(self) -> bool:
        """True if all that waits does so for the rest of the first item."""
        stopped = self._stopped or self.held or self._carry
        return not stopped and len(self._queue) == 1 and self._queue[0].open

    @property
    def _stopped(self) -> bool:
        return self.blocked or self.conditions.paused

    def put(self, item: Outgoing) -> None:
        """Queue an item behind the others."""
        item.size = sum(map(len, item.parts)) + OVERHEAD
        # The delay of the link is added to that of other rules.
        item.due += self.conditions.delay
        self.bytes += item.size
        self.frames += item.frames
        if not (item.overtake or item.defer):
            if self._queue is _NO_ITEMS:
                self._queue = deque()
            self._queue.append(item)
            item.paced = bool(item.paces)
            self.paced += item.paced
            return
        self._aside += 1
        if self._by_time is _NO_HEAP:
            self._by_time, self._by_count = [], []
        number, self._number = self._number, self._number + 1
        heappush(self._by_time, (item.due, number, item))
        if item.defer:
            heappush(self._by_count, (self._went + item.defer, number, item))

    # -- items that a native plane holds

    def hand_over(self) -> list[Outgoing]:
        """Remove and return the items, which are `plain`: a plane holds them from now on."""
        items, self._queue = [*self._queue], _NO_ITEMS
        frames, size = self.ahead
        self.ahead = frames + sum(item.frames for item in items), size + sum(item.size for item in items)
        return items

    def note_ahead(self, ahead: tuple[int, int]) -> None:
        """Note the frames and bytes that a plane holds now."""
        self.frames += ahead[0] - self.ahead[0]
        self.bytes += ahead[1] - self.ahead[1]
        self.ahead = ahead if ahead[0] else _NOTHING_AHEAD

    def take_back(self, items: list[Outgoing]) -> None:
        """Take all items back that a plane holds."""
        self.note_ahead(_NOTHING_AHEAD)
        for item in items:
            item.size = sum(map(len, item.parts)) + OVERHEAD
            self.bytes += item.size
            self.frames += item.frames
        self._queue = deque([*items, *self._queue])

    def grow(self, item: Outgoing, data: bytes, *, last: bool) -> None:
        """Add bytes to the open item."""
        if len(item.parts[-1]) < _PART:
            item.parts[-1] += data
        else:
            item.parts.append(data)
        item.size += len(data)
        self.bytes += len(data)
        item.open = not last

    def release(self, now: int, stop: Callable[[], bool] = UNLIMITED_WORK.reached) -> Iterator[Outgoing]:
        """Yield the items that are due, in the order in which they leave, until `stop` says so."""
        if self._stopped or self.held:
            return
        yield from self._overtaking(now, stop)
        while self._queue and self._is_due(self._queue[0], now) and not stop():
            item = self._queue.popleft()
            self.paced -= item.paced
            self.bytes -= item.size
            self.frames -= item.frames
            yield item
            self._went += item.frames
            if self._by_count and self._by_count[0][0] <= self._went:
                self._end_deferral()
                yield from self._overtaking(now, stop)

    @staticmethod
    def _is_due(item: Outgoing, now: int) -> bool:
        """Tell whether the first item may go."""
        if item.open or item.due > now:
            return False
        if item.paces:
            paces, item.paces = item.paces, ()
            item.due = max(pace(now) for pace in paces)
        return item.due <= now

    def _end_deferral(self) -> None:
        """Make deferred items due that have waited for their count of frames."""
        while self._by_count and self._by_count[0][0] <= self._went:
            _, number, item = heappop(self._by_count)
            if not item.gone:
                heappush(self._by_time, (0, number, item))

    def _overtaking(self, now: int, stop: Callable[[], bool]) -> Iterator[Outgoing]:
        waiting = []
        while self._by_time and (self._by_time[0][0] <= now or self._by_time[0][2].gone) and not stop():
            entry = heappop(self._by_time)
            item = entry[2]
            if item.gone:
                continue
            if item.open:
                waiting.append(entry)
                continue
            item.gone = True
            self._aside -= 1
            self.bytes -= item.size
            self.frames -= item.frames
            yield item
            item.parts = []  # the other heap may still hold the item
        for entry in waiting:
            heappush(self._by_time, entry)
        for heap in (self._by_time, self._by_count):
            # Not only when none is left: under steady traffic that never happens.
            if len(heap) > 4 * self._aside + 64:
                heap[:] = [entry for entry in heap if not entry[2].gone]
                heapify(heap)

    def carry(self, data: bytes | memoryview) -> None:
        """Give released bytes to the link's slicer and rate limit."""
        if self._carry is _NO_BYTES:
            self._carry = deque()
        self._carry.append(memoryview(data))
        self.bytes += len(data) + OVERHEAD

    @property
    def carrying(self) -> bool:
        """True if the slow link has not taken all of what was released."""
        return bool(self._carry)

    @property
    def limited(self) -> bool:
        """True if released bytes wait for the peer, or go through the slicer and the rate limit (`carry`)."""
        conditions = self.conditions
        return bool(self._carry) or conditions.rate is not None or conditions.slice_size > 0 or self.blocked

    def slices(self, now: int, stop: Callable[[], bool] = UNLIMITED_WORK.reached) -> Iterator[memoryview]:
        """Yield the slices that the link takes now, until `stop` says so."""
        conditions = self.conditions
        while self._carry and self._credit_at <= now and not self._stopped and not stop():
            piece = self._carry[0]
            # Without a size, slices are those of 10 ms, so that bytes flow evenly at the rate.
            size = conditions.slice_size or (
                max(1, conditions.rate // 100) if conditions.rate else len(piece)
            )
            head, rest = piece[:size], piece[size:]
            if len(rest):
                self._carry[0] = rest
            else:
                self._carry.popleft()
                self.bytes -= OVERHEAD
            self.bytes -= len(head)
            cost = conditions.slice_delay + (
                len(head) * 1_000_000_000 // conditions.rate if conditions.rate else 0
            )
            # An idle link saves up 20 ms: a late wake-up must not lower the rate, nor a pause allow a burst.
            self._credit_at = max(self._credit_at, now - 20_000_000) + cost
            yield head

    def _items(self) -> list[Outgoing]:
        """Return the items that have not been released."""
        aside = {entry[1]: entry[2] for entry in sorted(self._by_time, key=lambda entry: entry[1])}
        return [*self._queue, *(item for item in aside.values() if not item.gone)]

    def count(self, op: Op, direction: Direction) -> int:
        """Return the number of frames of an op that wait."""
        return sum(frame.op == op for frame in self.whole_frames(op.bit, direction))

    def whole_frames(self, ops: int, direction: Direction) -> Iterator[Frame]:
        """Yield the frames that wait and are whole, of all items that have one of these ops (a mask)."""
        for item in self._items():
            if item.ops & ops and not item.open:
                yield from frames(b"".join(item.parts), direction)

    @property
    def data_bytes(self) -> int:
        """The bytes that wait to be sent, without `OVERHEAD`."""
        return sum(len(part) for item in self._items() for part in item.parts)

    def lose_peer(self) -> None:
        """Hold the items for another peer, and forget what was on its way to this one."""
        self.blocked, self.held = False, True
        self.bytes -= sum(len(piece) + OVERHEAD for piece in self._carry)
        self._carry = _NO_BYTES

    def left(self) -> list[Outgoing]:
        """Remove and return all items that have not been released."""
        if not self.bytes:  # nearly always
            return []
        items = self._items()
        self._queue.clear()
        self._by_time.clear()
        self._by_count.clear()
        self._aside = self.frames = self.paced = 0
        self.bytes = sum(len(piece) + OVERHEAD for piece in self._carry)
        return items

    def make_due(self, now: int) -> None:
        """Let the items that wait here wait no longer; their order stays."""
        for item in self._queue:
            item.due, item.paces = min(item.due, now), ()
        self._by_time[:] = [(min(due, now), number, item) for due, number, item in self._by_time]
        heapify(self._by_time)

    def next_due(self) -> int | None:
        """Return the time (ns) at which an item may go next; None for none."""
        if self._stopped:
            return None
        if self._carry:
            return self._credit_at
        ahead = self._by_time[:1]
        if ahead and (ahead[0][2].open or ahead[0][2].gone):
            ahead = [entry for entry in self._by_time if not (entry[2].open or entry[2].gone)]
        times = [] if self.held else [due for due, _, _ in ahead]
        if self._queue and not (self._queue[0].open or self.held):
            times.append(self._queue[0].due)
        return min(times, default=None)
