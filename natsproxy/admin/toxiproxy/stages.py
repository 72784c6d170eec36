"""The toxics of Toxiproxy as stages of a chain: bytes and time in, bytes out.

Theory
1. A stage queues chunks, and `release` returns those that are due, in order: the one at the head waits for
   its time.  The end of the stream is a chunk too (`END`), so that it stays in order after the bytes before
   it.
2. A stage that closes a connection emits its own END; later input is lost.
3. A toxic acts on a share of the connections (its toxicity).  On the others its stage is transparent.
4. When a toxic is changed, the chunk at the head is sent at once, and the delays of the others start again.
   When it is removed, all that it holds is sent at once.

Attributes and their effects are Toxiproxy's, quirks included: `timeout` counts from the last chunk, `slicer`
has its delay in microseconds, and `bandwidth` with rate 0 holds everything and loses nothing.

Why these are not link rules, although rules of nearly the same names exist (as toxics, `nats_latency` and so
on):
- `timeout`, `reset_peer` and `limit_data` lose bytes in the middle of a frame.  After a rule the stream still
  consists of whole frames.  So toxics act below the session, each on the output of the one created before it,
  whereas the conditions of a link add up.
- Bytes held by `latency` and `slow_close` are sent when these are changed or removed; those held by a rule
  keep their time.
- `latency` draws a delay per chunk, `bandwidth` delays bytes before sending and allows no burst after idle
  time, and `slicer` varies its sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

_MS: Final = 1_000_000  # ns
_US: Final = 1_000
_FEW: Final = 64 * 1024


class Chunk(NamedTuple):
    """Bytes received together, and the time (ns) from which delays count."""

    data: bytes
    t: int


END: Final = Chunk(b"", 0)
"""The end of a stream; compared by identity."""


class ToxicStage:
    """One toxic on one direction of one connection; the base class is `noop`, which passes everything.

    active: it acts on this connection.  fresh: the connection is younger than the toxic.  over: its END was
    emitted.  bytes: those it holds.  room: the most bytes before the sender must wait.  closes: it emitted
    its own END.  resets: that END is a reset.
    """

    ATTRIBUTES: tuple[str, ...] = ()
    """Names of the attributes, which are whole numbers and 0 by default."""
    room = _FEW
    _at: int | None = None  # the time (ns) of its next action

    def __init__(self, attributes: Mapping[str, int], random: Random, now: int) -> None:
        self.attributes = attributes
        self.active = True
        self.fresh = self.over = self.closes = self.resets = False
        self.bytes = 0
        self._random = random
        self._queue: deque[Chunk] = deque()
        self._hurried = False  # the chunk at the head is due at once
        self._begin(now)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk."""
        if not self.over:
            self._queue.append(chunk)
            self.bytes += len(chunk.data)

    def release(self, now: int) -> list[Chunk]:
        """Return the chunks that are due."""
        out: list[Chunk] = []
        while not self.over:
            chunk = self._next(now) if self.active and not self._hurried else self._take()
            self._hurried = False
            if chunk is None:
                break
            out.append(chunk)
            self.bytes -= len(chunk.data)
            if chunk is END:
                self.over, self.bytes = True, 0
                self._queue.clear()
        return out

    @property
    def due(self) -> int | None:
        """The next time (ns) at which `release` may return something; None for none."""
        return None if self.over or not self.active else self._at

    def change(self, attributes: Mapping[str, int], active: bool, now: int) -> None:
        """Apply other attributes: the chunk at the head is due at once."""
        self._hurried = bool(self._queue) and self._queue[0] is not END
        self.attributes, self.active = attributes, active
        self._begin(now)

    def drain(self) -> list[Chunk]:
        """Return the chunks to send when the toxic is removed; its own END if it ends the connection."""
        return list(self._queue)

    # -- overridden by the toxics

    def _begin(self, now: int) -> None:
        """Start acting, at first or with other attributes."""
        self._at = None

    def _next(self, now: int) -> Chunk | None:
        """Return the next chunk that is due, None for none yet."""
        if self._queue and self._at is None:
            self._at = self._time(self._queue[0], now)
        if self._at is None or now < self._at:
            return None
        at, self._at, head = self._at, None, self._queue.popleft()
        return END if head is END else self._let_go(head, at, now)

    def _time(self, head: Chunk, now: int) -> int | None:
        """Return the time (ns) at which the chunk at the head is due; None for never."""
        return now

    def _let_go(self, head: Chunk, at: int, now: int) -> Chunk:
        """Return the part to send of the chunk that was at the head, which was due at `at`."""
        return head

    def _take(self) -> Chunk | None:
        return self._queue.popleft() if self._queue else None

    def _close(self) -> Chunk:
        self.closes = True
        return END


class LatencyStage(ToxicStage):
    """Delays chunks, counted from their arrival."""

    ATTRIBUTES = ("latency", "jitter")
    room = 8 * 1024 * 1024

    def _time(self, head: Chunk, now: int) -> int:
        delay, jitter = self.attributes["latency"] * _MS, self.attributes["jitter"] * _MS
        if head is END:
            return now
        return head.t + delay + (self._random.randrange(-jitter, jitter) if jitter > 0 else 0)

    def _let_go(self, head: Chunk, at: int, now: int) -> Chunk:
        return Chunk(head.data, at)  # the delays of two toxics add up


class BandwidthStage(ToxicStage):
    """Limits the rate, in kilobytes of 1000 bytes per second; rate 0 stops all bytes."""

    ATTRIBUTES = ("rate",)

    def _begin(self, now: int) -> None:
        super()._begin(now)
        self._free = now  # when the line is idle again

    def _time(self, head: Chunk, now: int) -> int | None:
        rate = self.attributes["rate"]
        if head is END:
            return now
        return max(self._free, now) + self._size(head) * _MS // rate if rate > 0 else None

    def _let_go(self, head: Chunk, at: int, now: int) -> Chunk:
        self._free, size = at, self._size(head)
        if size < len(head.data):
            self._queue.appendleft(Chunk(head.data[size:], head.t))
        return Chunk(head.data[:size], head.t)

    def _size(self, head: Chunk) -> int:
        return min(len(head.data), self.attributes["rate"] * 100)  # pieces of 100 ms


class SlowCloseStage(ToxicStage):
    """Delays the end of the stream."""

    ATTRIBUTES = ("delay",)

    def _time(self, head: Chunk, now: int) -> int:
        return now + self.attributes["delay"] * _MS if head is END else now


class SlicerStage(ToxicStage):
    """Cuts chunks into pieces, with a pause after each."""

    ATTRIBUTES = ("average_size", "size_variation", "delay")
    _pieces = 0  # number of pieces of the chunk at the head that was cut

    def _begin(self, now: int) -> None:
        super()._begin(now)
        self._free = now  # when the pause is over

    def _time(self, head: Chunk, now: int) -> int:
        return max(self._free, now)

    def _let_go(self, head: Chunk, at: int, now: int) -> Chunk:
        self._free = now + self.attributes["delay"] * _US
        if self._pieces:
            self._pieces -= 1
            return head
        first, *others = (Chunk(piece, head.t) for piece in self._cut(head.data))
        self._queue.extendleft(reversed(others))
        self._pieces = len(others)
        return first

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

    def change(self, attributes: Mapping[str, int], active: bool, now: int) -> None:
        """Apply other attributes: the rest of a chunk that was cut is due at once."""
        rest = [self._queue.popleft() for _ in range(self._pieces)]
        super().change(attributes, active, now)
        self._pieces, self._hurried = 0, bool(rest)
        if rest:
            self._queue.appendleft(Chunk(b"".join(piece.data for piece in rest), rest[0].t))


class LimitDataStage(ToxicStage):
    """Closes the connection after a number of bytes; the count survives changes."""

    ATTRIBUTES = ("bytes",)
    _passed = 0
    _reached = False

    def _next(self, now: int) -> Chunk | None:
        return self._close() if self._reached else super()._next(now)

    def _let_go(self, head: Chunk, at: int, now: int) -> Chunk:
        piece = head.data[: max(0, self.attributes["bytes"] - self._passed)]
        self.bytes -= len(head.data) - len(piece)
        self._passed += len(piece)
        self._reached = self._passed >= self.attributes["bytes"]
        return Chunk(piece, head.t)


class _Losing(ToxicStage):
    """Loses all bytes, and closes the connection at some time."""

    def _next(self, now: int) -> Chunk | None:
        if self._queue:
            self._lose(now)
            self._queue.clear()
            self.bytes = 0
        return None if self._at is None or now < self._at else self._close()

    def _lose(self, now: int) -> None:
        """Set the time on new input."""


class TimeoutStage(_Losing):
    """Loses all bytes, and closes the connection after a time without input; 0: never."""

    ATTRIBUTES = ("timeout",)

    def _begin(self, now: int) -> None:
        limit = self.attributes["timeout"]
        self._at = now + limit * _MS if limit > 0 else None

    def _lose(self, now: int) -> None:
        if any(chunk is not END for chunk in self._queue):
            self._begin(now)

    def drain(self) -> list[Chunk]:
        """End the connection where it acted: bytes are missing."""
        return [self._close()] if self.active else super().drain()


class ResetPeerStage(_Losing):
    """Resets the connection some time after its first bytes, which are lost; closes one that is not fresh."""

    ATTRIBUTES = ("timeout",)

    def _begin(self, now: int) -> None:
        if not self.active:  # otherwise the time stays once it is set
            self._at = None

    def _lose(self, now: int) -> None:
        if self._at is None:
            self._at = now + self.attributes["timeout"] * _MS

    def _close(self) -> Chunk:
        self.resets = self.fresh
        return super()._close()

    def drain(self) -> list[Chunk]:
        """End the connection if it lost bytes."""
        return [self._close()] if self.active and self._at is not None else super().drain()


STAGES: Final[dict[str, type[ToxicStage]]] = {
    "latency": LatencyStage,
    "bandwidth": BandwidthStage,
    "slow_close": SlowCloseStage,
    "timeout": TimeoutStage,
    "reset_peer": ResetPeerStage,
    "slicer": SlicerStage,
    "limit_data": LimitDataStage,
    "noop": ToxicStage,
}
"""The types of toxics that act on bytes."""


class ToxicChain:
    """The toxics on one direction of one connection, in the order in which they were added.

    It knows neither sockets nor a clock.  Bytes are put in at one end; `step` moves what is due, and returns
    what comes out at the other.  done: the end of the stream has come out.  closed_by: the toxic that caused
    it, "" for none.  resets: it is a reset.
    """

    def __init__(self) -> None:
        self.done = False
        self.closed_by = ""
        self.resets = False
        self._stages: dict[str, ToxicStage] = {}
        self._came: list[Chunk] = []

    # -- the toxics

    def add(self, name: str, stage: ToxicStage) -> None:
        """Add a stage at the end; it acts on later input only."""
        self._stages[name] = stage

    def get(self, name: str) -> ToxicStage:
        """Return a stage."""
        return self._stages[name]

    def remove(self, name: str, now: int) -> list[Chunk]:
        """Remove a stage; return the output, as `step` does: the chunks that it held are sent at once."""
        out = self._move(now)
        place, stage = list(self._stages).index(name), self._stages.pop(name)
        left = [] if stage.over else stage.drain()
        self._note(name, stage, left)
        return self._out(out + self._through(list(self._stages.items())[place:], left, now))

    # -- bytes

    def put(self, data: bytes, now: int) -> None:
        """Put bytes in."""
        self._came.append(Chunk(data, now))

    def end(self) -> None:
        """Put the end of the stream in."""
        self._came.append(END)

    def step(self, now: int) -> list[Chunk]:
        """Return the chunks that come out now; the last one may be END."""
        return self._out(self._move(now))

    def _move(self, now: int) -> list[Chunk]:
        came, self._came = self._came, []
        return self._through(self._stages.items(), came, now)

    def _through(
        self, stages: Iterable[tuple[str, ToxicStage]], chunks: list[Chunk], now: int
    ) -> list[Chunk]:
        for name, stage in stages:
            for chunk in chunks:
                stage.put(chunk)
            chunks = stage.release(now)
            self._note(name, stage, chunks)
        return chunks

    def _note(self, name: str, stage: ToxicStage, out: list[Chunk]) -> None:
        """Note which stage closes, if the END that came out of it is its own."""
        if stage.closes and out and out[-1] is END:
            self.closed_by, self.resets = name, stage.resets

    def _out(self, chunks: list[Chunk]) -> list[Chunk]:
        if self.done:
            return []
        self.done = bool(chunks) and chunks[-1] is END
        return chunks

    @property
    def due(self) -> int | None:
        """The next time (ns) at which `step` has something to do; None for none."""
        if self.done:
            return None
        return min((due for stage in self._stages.values() if (due := stage.due) is not None), default=None)

    @property
    def held(self) -> int:
        """The number of bytes that it holds."""
        return sum(stage.bytes for stage in self._stages.values())

    @property
    def full(self) -> bool:
        """True if the sender must wait."""
        return not self.done and any(stage.bytes > stage.room for stage in self._stages.values())
