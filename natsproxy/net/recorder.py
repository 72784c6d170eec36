"""The recorder: items from the traffic path to the capture writer, without ever making traffic wait.

Items are packed in the loop (cheap) into the block being built; sealed blocks are written by a thread, one at
a time.  What waits for the disk is bounded in bytes: when it overflows, or the disk fails, items are counted
instead of kept, one event says so, and the capture gets a gap record when there is room again.  Under
`strict` the connections are closed instead (the proxy's business: `on_strict`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import trio

from natsproxy.capture.builder import BLOCK_SIZE, BlockBuilder, SealedBlock
from natsproxy.capture.records import Frames, Gap, Item, Preamble
from natsproxy.capture.sieve import Sieve
from natsproxy.capture.writer import CaptureWriter, SegmentInfo
from natsproxy.config.settings import RecordSettings
from natsproxy.errors import CaptureError
from natsproxy.events import Event, Notice
from natsproxy.events import Gap as GapEvent
from natsproxy.net.relay import now_ns
from natsproxy.wire.frames import NO_LIMIT

SIFTED: Final = 2048
"""The most frames of one record where each may have to be looked at: a record is put in one go."""
_OVERHEAD = 64  # bytes counted for an item without data


class Recorder:
    """Records to one capture; made by the proxy, run in its nursery.  most: frames of one record."""

    def __init__(
        self,
        settings: RecordSettings,
        *,
        seed: int | None,
        rules: str | None,
        emit: Callable[[Event], None],
        preambles: Callable[[], Iterable[Preamble]],
        on_strict: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.id = os.urandom(16)
        self.boot = _boot_id()
        self.waiting = 0
        self.written = 0
        self.lost_frames = 0
        self._seed, self._rules = seed, rules
        self._emit, self._preambles, self._on_strict = emit, preambles, on_strict
        self._writer = CaptureWriter(settings.path, self._info(), compression=settings.compression)
        self._builder = BlockBuilder()
        self._sieve = Sieve(settings.selection)
        self.most = SIFTED if self._sieve.cuts else NO_LIMIT
        self._began = 0
        self._segment_began = now_ns()
        self._sealed: deque[SealedBlock] = deque()
        self._wake = trio.Event()
        self._rotate = False
        self._gap: dict[str, Any] | None = None
        self._failed: str | None = None
        self._closing = False
        self._writer.open_segment()

    def _info(self) -> SegmentInfo:
        settings = {
            "compression": self.settings.compression,
            "frame_max": self.settings.frame_max,
            **self.settings.selection.described(),
        }
        return SegmentInfo(self.id, self.boot, time.time_ns(), now_ns(), self._seed, self._rules, settings)

    # -- the traffic path

    def put(self, item: Item) -> None:
        """Take an item; never blocks, never raises."""
        if self._sieve.passes(item):
            self._put(item)
            return
        for kept in self._sieve.sift(item):
            self._put(kept)

    def _put(self, item: Item) -> None:
        size = len(item.data) + _OVERHEAD if isinstance(item, Frames) else _OVERHEAD
        if self._failed is not None or self.waiting + self._builder.size + size > self.settings.queue:
            self._miss(item, size)
            return
        if not self._builder.begun:
            self._began = now_ns()
            self._builder.begin(self._began, time.time_ns())
            self._wake.set()
            self._say_gap()
        self._builder.add(item)
        if self._builder.size >= BLOCK_SIZE:
            self._seal()

    def _seal(self) -> None:
        block = self._builder.seal()
        self.waiting += block.length
        self._sealed.append(block)
        self._wake.set()

    def _miss(self, item: Item, size: int) -> None:
        first = self._gap is None
        if self._gap is None:
            reason = self._failed or "the disk did not keep up"
            self._gap = {"reason": reason, "bytes": 0, "frames": 0, "t0": item.t, "t1": item.t}
        self._gap["bytes"] += size - _OVERHEAD
        self._gap["t1"] = item.t
        frames = item.frames if isinstance(item, Frames) else 0
        self._gap["frames"] += frames
        self.lost_frames += frames
        if first:
            self._emit(GapEvent(item.t, None, self._gap["reason"]))
            if self.settings.strict:
                self._on_strict(self._gap["reason"])

    def _say_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None:
            self._builder.add(Gap(None, gap["t1"], gap))

    # -- the task

    async def run(self) -> None:
        """Write blocks until `close`; run in the proxy's nursery."""
        while True:
            await self._wait()
            flush = self._builder.begun and now_ns() - self._began >= self.settings.flush
            if flush or (self._closing and self._builder.begun):
                self._seal()
            while self._sealed:
                block = self._sealed[0]
                await self._in_thread(self._writer.write, block)
                self._sealed.popleft()
                self.waiting -= block.length
                self.written += block.length
            if self._closing and not self._builder.begun:
                if self._gap is not None and self._failed is None:
                    self._builder.begin(now_ns(), time.time_ns())
                    self._say_gap()
                    continue
                await self._in_thread(self._writer.close)
                return
            if self._rotate or self._due_to_rotate():
                self._rotate = False
                await self._next_segment()

    async def _wait(self) -> None:
        if self._sealed or self._closing or self._rotate:
            await trio.lowlevel.checkpoint()
            return
        self._wake = trio.Event()
        timeout = float("inf")
        if self._builder.begun:
            timeout = max(0.0, (self._began + self.settings.flush - now_ns()) / 1e9)
        with trio.move_on_after(timeout):
            await self._wake.wait()

    def _due_to_rotate(self) -> bool:
        size, interval = self.settings.rotate_size, self.settings.rotate_interval
        if size and self._writer.size >= size:
            return True
        return bool(interval) and now_ns() - self._segment_began >= interval

    async def _next_segment(self) -> None:
        if self._builder.begun:
            self._seal()
        while self._sealed:
            block = self._sealed.popleft()
            await self._in_thread(self._writer.write, block)
            self.waiting -= block.length
        await self._in_thread(self._writer.open_segment, self._info())
        self._failed = None
        self._segment_began = now_ns()
        for preamble in self._preambles():
            self.put(preamble)

    async def _in_thread(self, work: Callable[..., object], *args: object) -> None:
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(work, *args)
        except CaptureError as error:
            if self._failed is None:
                self._failed = str(error)
                self._emit(Notice(now_ns(), None, "error", f"the capture stopped, traffic goes on: {error}"))
                if self.settings.strict:
                    self._on_strict(str(error))

    # -- control

    @property
    def file(self) -> Path | None:
        """The file that is being written."""
        return self._writer.file

    def rotate(self) -> None:
        """Begin a new segment."""
        self._rotate = True
        self._wake.set()

    def close(self) -> None:
        """Write what is there and end `run`."""
        self._closing = True
        self._wake.set()


def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - a kernel file
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except OSError:
        return bytes(16)
