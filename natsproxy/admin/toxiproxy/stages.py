"""The toxics of Toxiproxy as stages of a chain: bytes and time in, bytes out.

Theory
1. A stage queues chunks, and `release` returns those that may go now, in order.  The end of the stream is a
   chunk too (`END`), so that it keeps its place behind the bytes before it.
2. A stage that closes a connection emits an END of its own; what comes to it later is lost.
3. A toxic acts on a share of the connections (its toxicity).  On the others its stage lets all pass.
4. When a toxic is changed, the chunk that waits at the head goes at once, and the others wait anew.

Attributes and their effects are Toxiproxy's, its odd ones included: `timeout` counts from the last chunk,
`slicer` has its delay in microseconds, and `bandwidth` with rate 0 keeps everything and loses nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple

_MS: Final = 1_000_000  # ns
_US: Final = 1_000
_FEW: Final = 64 * 1024


class Chunk(NamedTuple):
    """Bytes that came together, and the time (ns) from which delays count."""

    data: bytes
    t: int


END: Final = Chunk(b"", 0)
"""The end of a stream; compared by identity."""


class Stage(ABC):
    """One toxic on one direction of one connection.

    active: it acts on this connection.  over: its END is out.  bytes: that it holds.  room: more of them keep
    their sender from sending.  closes: it emitted an END of its own.  resets: such an END is a reset.
    """

    ATTRIBUTES: tuple[str, ...] = ()
    """Names of the attributes, which are whole numbers and 0 by default."""
    room = _FEW

    def __init__(self, attributes: Mapping[str, int], random: Random, now: int) -> None:
        self.attributes = attributes
        self.active = True
        self.over = self.closes = self.resets = False
        self.bytes = 0
        self._random = random
        self._queue: deque[Chunk] = deque()
        self._pieces: deque[Chunk] = deque()  # of a chunk that was taken from the queue
        self._begin(now)

    def put(self, chunk: Chunk) -> None:
        """Take a chunk."""
        if not self.over:
            self._queue.append(chunk)
            self.bytes += len(chunk.data)

    def release(self, now: int) -> list[Chunk]:
        """Return the chunks that go now."""
        out: list[Chunk] = []
        while not self.over and (chunk := self._next(now) if self.active else self._take()) is not None:
            out.append(chunk)
            self.bytes -= len(chunk.data)
            if chunk is END:
                self.over, self.bytes = True, 0
                self._queue.clear()
        return out

    def due(self) -> int | None:
        """Return the time (ns) at which `release` may have something new; None for none."""
        return None if self.over or not self.active else self._due()

    def change(self, attributes: Mapping[str, int], active: bool, now: int) -> None:
        """Go on with other attributes: the chunk at the head goes at once."""
        if active:
            self._hurry(now)
        else:  # all goes
            self._forget()
        self.attributes, self.active = attributes, active
        self._begin(now)

    def drain(self) -> list[Chunk]:
        """Take out all that it holds, when the toxic is removed; `closes` where that ends the connection."""
        left = [*self._pieces, *self._queue]
        self._pieces.clear()
        self._queue.clear()
        self.bytes = 0
        return left

    # -- for the toxics

    @abstractmethod
    def _next(self, now: int) -> Chunk | None:
        """Return the next chunk that goes now, None for none yet."""

    def _due(self) -> int | None:
        return None

    def _begin(self, now: int) -> None:
        """Begin to act."""
        return

    def _hurry(self, now: int) -> None:
        """Let the chunk at the head go at the next `release`."""
        return

    def _forget(self) -> None:
        """Forget the times of what waits."""
        return

    def _take(self) -> Chunk | None:
        waiting = self._pieces or self._queue
        return waiting.popleft() if waiting else None

    def _close(self, *, reset: bool = False) -> Chunk:
        self.closes, self.resets = True, reset
        return END


class Noop(Stage):
    """Lets all pass."""

    def _next(self, now: int) -> Chunk | None:
        return self._take()


class _Waiting(Stage):
    """A stage whose head waits for a time.  at: that time (ns), None where it is not known yet."""

    at: int | None = None

    def _due(self) -> int | None:
        return self.at

    def _hurry(self, now: int) -> None:
        if self.at is not None:
            self.at = now

    def _forget(self) -> None:
        self.at = None


class Latency(_Waiting):
    """Delays chunks, counted from their arrival."""

    ATTRIBUTES = ("latency", "jitter")
    room = 8 * 1024 * 1024

    def _next(self, now: int) -> Chunk | None:
        if not self._queue:
            return None
        head = self._queue[0]
        if head is not END:
            if self.at is None:
                self.at = head.t + self._delay()
            if now < self.at:
                return None
            head = Chunk(head.data, self.at)  # the delays of two toxics add up
            self.at = None
        self._queue.popleft()
        return head

    def _delay(self) -> int:
        delay, jitter = self.attributes["latency"] * _MS, self.attributes["jitter"] * _MS
        return delay + self._random.randrange(-jitter, jitter) if jitter > 0 else delay


class Bandwidth(_Waiting):
    """Lets bytes go at a rate, in kilobytes of 1000 bytes per second; none at rate 0."""

    ATTRIBUTES = ("rate",)

    def _begin(self, now: int) -> None:
        self._free = now  # when the line has sent what it took
        self._all = False

    def _next(self, now: int) -> Chunk | None:
        if not self._queue:
            return None
        head, rate = self._queue[0], self.attributes["rate"]
        if head is END or self._all:
            self._all, self.at = False, None
            return self._queue.popleft()
        if rate <= 0:
            return None
        size = min(len(head.data), rate * 100)  # pieces of 100 ms
        if self.at is None:
            self.at = max(self._free, now) + size * _MS // rate
        if now < self.at:
            return None
        self._free, self.at = self.at, None
        self._queue.popleft()
        if size < len(head.data):
            self._queue.appendleft(Chunk(head.data[size:], head.t))
        return Chunk(head.data[:size], head.t)

    def change(self, attributes: Mapping[str, int], active: bool, now: int) -> None:
        """Go on at another rate; the chunk at the head goes at once."""
        super().change(attributes, active, now)
        self.at = None
        self._all = active and bool(self._queue)


class SlowClose(_Waiting):
    """Keeps the end of the stream back."""

    ATTRIBUTES = ("delay",)

    def _begin(self, now: int) -> None:
        self.at = None

    def _next(self, now: int) -> Chunk | None:
        if self._queue and self._queue[0] is END:
            if self.at is None:
                self.at = now + self.attributes["delay"] * _MS
            if now < self.at:
                return None
        return self._take()


class Timeout(_Waiting):
    """Loses all bytes, and closes when none has come for a time; at 0 it never does."""

    ATTRIBUTES = ("timeout",)

    def _begin(self, now: int) -> None:
        limit = self.attributes["timeout"]
        self.at = now + limit * _MS if limit > 0 else None

    def _next(self, now: int) -> Chunk | None:
        if any(chunk is not END for chunk in self._queue):
            self._begin(now)
        self._queue.clear()
        self.bytes = 0
        return self._close() if self.at is not None and self.at <= now else None

    def drain(self) -> list[Chunk]:
        """Take out what it holds; bytes are missing where it acted, so that the connection has to end."""
        self.closes = self.active
        return super().drain()


class ResetPeer(_Waiting):
    """Resets the connection some time after its first bytes, which are lost.

    fresh: the connection is younger than the toxic; others are only closed.
    """

    ATTRIBUTES = ("timeout",)
    fresh = False

    def _next(self, now: int) -> Chunk | None:
        if self._queue and self.at is None:
            self.at = now + self.attributes["timeout"] * _MS
        if self.at is None:
            return None
        self._queue.clear()
        self.bytes = 0
        return self._close(reset=self.fresh) if self.at <= now else None

    def _hurry(self, now: int) -> None:
        """Do nothing: once it has begun, its time is set."""

    def drain(self) -> list[Chunk]:
        """Take out what it holds; a connection of which it lost bytes has to end."""
        self.closes, self.resets = self.active and self.at is not None, self.fresh
        return super().drain()


class Slicer(_Waiting):
    """Cuts chunks into pieces, with a pause behind each."""

    ATTRIBUTES = ("average_size", "size_variation", "delay")

    def _begin(self, now: int) -> None:
        self.at = now

    def _next(self, now: int) -> Chunk | None:
        if self.at is not None and now < self.at:
            return None
        if not self._pieces:
            chunk = self._take()
            if chunk is None or chunk is END:
                return chunk
            self._pieces.extend(Chunk(piece, chunk.t) for piece in self._cut(chunk.data))
        self.at = now + self.attributes["delay"] * _US
        return self._pieces.popleft()

    def _due(self) -> int | None:
        return self.at if self._pieces or self._queue else None

    def _cut(self, data: bytes) -> list[bytes]:
        average, variation = max(1, self.attributes["average_size"]), self.attributes["size_variation"]
        pieces, left = [], [data]
        while left:
            piece = left.pop()
            half = len(piece) // 2
            if variation > 0:
                half += self._random.randrange(-variation, variation)
            if len(piece) - average <= variation or not 0 < half < len(piece):
                pieces.append(piece)
            else:
                left += [piece[half:], piece[:half]]
        return pieces

    def _hurry(self, now: int) -> None:
        if self._pieces:
            rest = b"".join(piece.data for piece in self._pieces)
            self._pieces = deque([Chunk(rest, self._pieces[0].t)])


class LimitData(Stage):
    """Closes the connection when so many bytes have passed; the count survives changes."""

    ATTRIBUTES = ("bytes",)
    _passed = 0
    _reached = False

    def _next(self, now: int) -> Chunk | None:
        if self._reached:
            return self._close()
        chunk = self._take()
        if chunk is None or chunk is END:
            return chunk
        piece = chunk.data[: max(0, self.attributes["bytes"] - self._passed)]
        self.bytes -= len(chunk.data) - len(piece)
        self._passed += len(piece)
        self._reached = self._passed >= self.attributes["bytes"]
        return Chunk(piece, chunk.t)


STAGES: Final[dict[str, type[Stage]]] = {
    "latency": Latency,
    "bandwidth": Bandwidth,
    "slow_close": SlowClose,
    "timeout": Timeout,
    "reset_peer": ResetPeer,
    "slicer": Slicer,
    "limit_data": LimitData,
    "noop": Noop,
}
"""The types of toxics that act on bytes."""
