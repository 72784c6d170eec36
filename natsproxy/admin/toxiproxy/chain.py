"""The chain: the toxics on one direction of one connection, in the order in which they were added.

It knows neither sockets nor a clock.  Bytes are put in at one end; `step` moves what may move now, and
returns what comes out at the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from natsproxy.admin.toxiproxy.stages import END, Chunk, Stage


class Chain:
    """The stages of one direction.

    done: the end of the stream has come out.  closed_by: the toxic whose doing that was, "" for none.
    resets: it is a reset.
    """

    def __init__(self) -> None:
        self.done = False
        self.closed_by = ""
        self.resets = False
        self._stages: dict[str, Stage] = {}
        self._came: list[Chunk] = []

    # -- the toxics

    def add(self, name: str, stage: Stage) -> None:
        """Add a stage at the end, for what comes after it was added."""
        self._stages[name] = stage

    def get(self, name: str) -> Stage:
        """Return a stage."""
        return self._stages[name]

    def remove(self, name: str, now: int) -> list[Chunk]:
        """Remove a stage; return what comes out, as `step` does: the chunks that it held go on at once."""
        out = self._move(now)
        stages, stage = list(self._stages.values()), self._stages[name]
        later = stages[stages.index(stage) + 1 :]
        left = stage.drain()
        if stage.closes and not stage.over:
            self._close(stage)
            left.append(END)
        del self._stages[name]
        return self._out(out + self._through(later, left, now))

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
        return self._through(self._stages.values(), came, now)

    def _through(self, stages: Iterable[Stage], chunks: list[Chunk], now: int) -> list[Chunk]:
        for stage in stages:
            for chunk in chunks:
                stage.put(chunk)
            was_over = stage.over
            chunks = stage.release(now)
            if stage.closes and stage.over and not was_over:
                self._close(stage)
        return chunks

    def _close(self, closing: Stage) -> None:
        self.resets = closing.resets
        self.closed_by = next(name for name, stage in self._stages.items() if stage is closing)

    def _out(self, chunks: list[Chunk]) -> list[Chunk]:
        if self.done:
            return []
        self.done = bool(chunks) and chunks[-1] is END
        return chunks

    @property
    def due(self) -> int | None:
        """The time (ns) at which `step` has something to do next; None for none."""
        if self.done:
            return None
        return min((due for stage in self._stages.values() if (due := stage.due()) is not None), default=None)

    @property
    def held(self) -> int:
        """Bytes that it holds."""
        return sum(stage.bytes for stage in self._stages.values())

    @property
    def full(self) -> bool:
        """True if the sender must wait."""
        return not self.done and any(stage.bytes > stage.room for stage in self._stages.values())
