"""The recorder: items from the traffic path to a capture.

Items are packed in the loop (cheap) into the block being built; sealed blocks go to a thread (`disk.py`).
What waits for the disk is bounded in bytes.  `overflow` says what happens when a disk is too slow, or fails:

| overflow | the queue is full | a write fails |
| --- | --- | --- |
| gap | what comes is counted and not kept | the queue fills |
| wait | connections are not read; after `wait` as close | as close |
| close | connections are ended, new ones refused | the same |

That is over when half of the queue is free again.  Before it comes to that, with clearly more than half of
it used, `gap` too holds traffic up, for up to 30 % of the time: where all processors are busy, traffic would
take them from the thread that writes.  With `wait` and `close` all that passes is kept: the bound is exceeded
by one read of each connection, and by what is to be said of those that are ended.  An outage is said once
when it begins, and once when it is over, with what is missing; a gap record says that in the capture.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from natsproxy.capture.filter.recording_filter import RecordingFilter
from natsproxy.capture.format.records import Frames, Gap, Item, Preamble
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.config.settings import RecordSettings
from natsproxy.events import Event, Notice
from natsproxy.events import Gap as GapEvent
from natsproxy.net.disk import Disk
from natsproxy.net.gate import Gate
from natsproxy.net.relay import now_ns
from natsproxy.wire.frames import NO_LIMIT

SIFTED: Final = 2048
"""The most frames of one record where each may have to be looked at: a record is put in one go."""
SLOW: Final = "the disk did not keep up"
_MORE: Final = 4 * BLOCK_SIZE  # more than half of the queue, from which on traffic is held up
_SHARE: Final = 0.3
_CREDIT: Final = 100_000_000  # ns for which it is held up at once


@dataclass(slots=True)
class _Outage:
    """Why a capture did not go on, since when, and what was missed from when to when."""

    reason: str
    since: int
    frames: int = 0
    bytes: int = 0
    t0: int | None = None
    t1: int = 0

    def miss(self, item: Item) -> None:
        """Count what is not kept."""
        self.t0 = item.t if self.t0 is None else self.t0
        self.t1 = item.t
        if isinstance(item, Frames):
            self.frames += item.frames
            self.bytes += len(item.data)


class Recorder:
    """Records to one capture; made by the proxy, run in its nursery.

    gate: where traffic waits or is refused.  end_all: ends all connections, for the reason given.  most:
    frames of one record.  failure: what could not be written of a capture that has ended.
    """

    def __init__(
        self,
        settings: RecordSettings,
        *,
        seed: int | None,
        rules: str | None,
        emit: Callable[[Event], None],
        preambles: Callable[[], Iterable[Preamble]],
        gate: Gate,
        end_all: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.id = os.urandom(16)
        self.boot = _boot_id()
        self.failure: str | None = None
        self._seed, self._rules = seed, rules
        self._emit, self._preambles, self._gate, self._end_all = emit, preambles, gate, end_all
        self._writer = CaptureWriter(settings.path, self._info(), compression=settings.compression)
        self._disk = Disk(
            self._writer,
            low=settings.queue // 2,
            tell=trio.lowlevel.current_trio_token().run_sync_soon,
            failed=self._on_failed,
            eased=self._go_on,
        )
        self._builder = BlockBuilder()
        self._filter = RecordingFilter(settings.selection)
        self.most = SIFTED if self._filter.cuts else NO_LIMIT
        self._began = 0
        self._segment_began = now_ns()
        self._wake = trio.Event()
        self._rotate = False
        self._full = False
        self._missing = False  # what comes is not kept
        self._patient_until: int | None = None
        self._credit, self._credit_at = _CREDIT, now_ns()
        self._outage: _Outage | None = None
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
        if self._filter.passes(item):
            self._put(item)
            return
        for kept in self._filter.apply(item):
            self._put(kept)

    def _put(self, item: Item) -> None:
        if self._missing:
            assert self._outage is not None
            self._outage.miss(item)
            return
        builder = self._builder
        if not builder.begun:
            self._began = now_ns()
            builder.begin(self._began, time.time_ns())
            self._wake.set()
        builder.add(item)
        if builder.size >= BLOCK_SIZE:
            self._seal()
        waiting = self.waiting
        if waiting > self.settings.queue and not self._full:
            self._overflow()
        elif waiting > self.settings.queue // 2 + _MORE and self.settings.overflow == "gap":
            self._slow_down()

    @property
    def waiting(self) -> int:
        """How many bytes are not written yet."""
        return self._disk.waiting + self._builder.size

    def _seal(self) -> None:
        self._disk.write(self._builder.seal())
        if self._due_to_rotate():
            self._wake.set()

    # -- outages

    def _overflow(self) -> None:
        self._full = True
        if self._builder.begun:
            self._seal()
        if self.settings.overflow == "gap":
            self._missing = True
            self._say(SLOW, "traffic goes on unrecorded")
        elif self.settings.overflow == "close":
            self._bar(SLOW)
        elif self._gate.barred() is None:
            self._hold_up(self.settings.wait)
        self._disk.when_eased()

    def _slow_down(self) -> None:
        """Let traffic wait a little for the disk, if it has not waited too much already."""
        now = now_ns()
        if self._gate.shut or self._outage is not None:
            return
        self._credit = min(_CREDIT, self._credit + int((now - self._credit_at) * _SHARE))
        self._credit_at = now
        if self._credit > _CREDIT // 10:
            self._hold_up(self._credit)
            self._disk.when_eased()

    def _hold_up(self, most: int) -> None:
        self._gate.close()
        self._patient_until = now_ns() + most
        self._wake.set()

    def _on_failed(self, reason: str) -> None:
        if self._closing or self.settings.overflow == "gap":
            self._say(reason, "traffic goes on")
        else:
            self._bar(reason)

    def _bar(self, reason: str) -> None:
        self._patient_until = None
        if self._gate.barred() is None:
            self._gate.bar(reason)
            self._say(reason, "connections are closed, and new ones refused")
            self._end_all(reason)

    def _say(self, reason: str, meanwhile: str) -> None:
        if self._outage is None:
            now = now_ns()
            self._outage = _Outage(reason, now)
            self._emit(Notice(now, None, "error", f"the capture stands still, {meanwhile}: {reason}"))

    def _go_on(self) -> None:
        self._full = self._missing = False
        self._let_go()
        outage, self._outage = self._outage, None
        if outage is None:
            return
        if outage.t0 is not None:
            info = {
                "reason": outage.reason,
                "bytes": outage.bytes,
                "frames": outage.frames,
                "t0": outage.t0,
                "t1": outage.t1,
            }
            self._put(Gap(None, outage.t1, info))
        gap = GapEvent(now_ns(), None, outage.reason, outage.bytes, outage.frames, outage.since)
        self._emit(gap)

    def _let_go(self) -> None:
        """Open the gate; what traffic has waited under `gap` is taken from its credit."""
        now = now_ns()
        if self._patient_until is not None:
            self._patient_until = None
            self._credit -= now - self._credit_at
            self._credit_at = now
        self._gate.open()

    # -- the task

    async def run(self) -> None:
        """Write until `close`; run in the proxy's nursery."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time)
            await trio.to_thread.run_sync(self._disk.run, limiter=trio.CapacityLimiter(1))
            nursery.cancel_scope.cancel()
        if self._disk.failure is not None:
            lost = self._disk.lost_frames
            self.failure = f"{self._disk.failure}: {lost} frames at its end are not in it"
            self._emit(Notice(now_ns(), None, "error", self.failure))

    async def _keep_time(self) -> None:
        """Seal blocks in time, begin segments when they are due, wait for the disk no longer than allowed."""
        while not self._closing:
            await self._until_due()
            now = now_ns()
            if self._builder.begun and now >= self._began + self.settings.flush:
                self._seal()
            if self._patient_until is not None and now >= self._patient_until:
                if self.settings.overflow == "gap":
                    self._let_go()
                else:
                    self._bar(f"{SLOW} for {self.settings.wait / 1e9:g} s")
            if self._rotate or self._due_to_rotate():
                self._rotate = False
                self._next_segment()
        if self._missing:
            self._go_on()
        if self._builder.begun:
            self._seal()
        self._disk.end()

    async def _until_due(self) -> None:
        if self._rotate or self._closing:
            await trio.lowlevel.checkpoint()
            return
        self._wake = trio.Event()
        times = [self._patient_until] if self._patient_until is not None else []
        if self._builder.begun:
            times.append(self._began + self.settings.flush)
        with trio.move_on_at(min(times) / 1e9 if times else float("inf")):
            await self._wake.wait()

    def _due_to_rotate(self) -> bool:
        if self._disk.rotating:
            return False
        size, interval = self.settings.rotate_size, self.settings.rotate_interval
        if size and self._writer.size >= size:
            return True
        return bool(interval) and now_ns() - self._segment_began >= interval

    def _next_segment(self) -> None:
        if self._builder.begun:
            self._seal()
        self._segment_began = now_ns()
        self._disk.begin(self._info())
        for preamble in self._preambles():
            self.put(preamble)

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
        self._gate.open()
        self._wake.set()


def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - a kernel file
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except OSError:
        return bytes(16)
