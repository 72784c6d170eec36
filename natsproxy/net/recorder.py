"""The recorder: it takes records from the traffic path and writes them to one capture.

The loop packs records into the block that is being built, which is cheap; a thread writes sealed blocks
(`writer_thread.py`).  The queue of that thread is bounded in bytes, and `overflow` chooses the reaction to
a disk that is too slow, or fails:

| overflow | the queue is full | a write fails |
| --- | --- | --- |
| gap | later records are counted and dropped | the queue fills |
| wait | connections are not read; after `wait`, as close | as close |
| close | connections are ended, new ones refused | the same |

1. The outage ends when half of the queue is free again.
2. `gap` too pauses traffic before it drops records: with clearly more than half of the queue used, for up to
   30 % of the time.  If all processors are busy, traffic would otherwise starve the thread that writes.
3. `wait` and `close` keep every record of the traffic that passes.  The queue then exceeds its bound by one
   read of each connection, by the closing records of the connections that are ended, and with threads by a
   few blocks (`BlockBuilder.overfull`).
4. An outage is reported twice: an error when it begins, and an event when it is over, with the number of
   missing frames.  The capture has a gap record for it.  If a write fails while the disk is reported as
   slow, the failure is the real reason, and is reported too.
5. Frames that cannot be written at the end are in a gap record too, if there is room for that, and always
   in `failure`.
6. Live viewers see a sample of what `gap` drops, and its counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Final

import trio

from natsproxy.capture.filter.recording_filter import RecordingFilter
from natsproxy.capture.format.records import Item, Preamble
from natsproxy.capture.write.builder import BLOCK_SIZE, BlockBuilder, Missed
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.config.recording import RecordSettings
from natsproxy.events import Event, Notice, RecordingResumed
from natsproxy.net.admission import Admission
from natsproxy.net.clock import BlockClocks, boot_id, now_ns
from natsproxy.net.live_blocks import KEPT, LiveBlocks
from natsproxy.net.retention import Expired, Retention
from natsproxy.net.writer_thread import Loss, WriterThread
from natsproxy.wire.frames import NO_LIMIT

FILTERED_FRAMES: Final = 2048
"""The frames of one record at most, where the pure filter may look at each: `put` filters it in one go."""
SLOW: Final = "disk too slow"
_SLOWDOWN_MARGIN: Final = 4 * BLOCK_SIZE  # beyond half of the queue; from there `gap` holds traffic up
_SLOWDOWN_SHARE: Final = 0.3  # of the time, for which `gap` may hold traffic up
_SLOWDOWN_CREDIT: Final = 100_000_000  # ns for which it may at once


class Recorder:
    """Records to one capture; made by the proxy, run in its nursery.

    preambles: returns the preambles of the open connections, for a new segment; from the call on no frame of
    theirs is recorded until the loop goes on.  admission: holds or refuses traffic.  end_all: ends all
    connections, for a reason.  most_frames: the frames of one record at most.
    owner: the recordings whose old segments may be deleted (`retention.py`).  rules: those in force, for the
    header of the next segment.  expired: the number of segments that were deleted, and their bytes.
    frames: those in sealed blocks.
    failure: the reason why an ended capture is not whole, as a sentence; None where it is.
    live: is shown each sealed block.
    """

    def __init__(
        self,
        settings: RecordSettings,
        *,
        seed: int | None,
        rules: str | None,
        owner: str,
        emit: Callable[[Event], None],
        preambles: Callable[[], Iterable[Preamble]],
        admission: Admission,
        end_all: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.id = os.urandom(16)
        self.boot = boot_id()
        self.failure: str | None = None
        self._clocks = BlockClocks()
        self._seed, self.rules = seed, rules
        self.expired, self.frames = (0, 0), 0
        self._retention = Retention(settings, owner) if settings.keep else None
        self._emit, self._preambles, self._admission, self._end_all = emit, preambles, admission, end_all
        self._writer = CaptureWriter(settings.path, self._info(), compression=settings.compression)
        self._thread = WriterThread(
            self._writer,
            retention=self._retention,
            low=settings.queue // 2,
            call_in_loop=trio.lowlevel.current_trio_token().run_sync_soon,
            on_failure=self._on_failure,
            on_room=self._resume,
            on_expired=self._on_expired,
        )
        chosen = RecordingFilter(settings.selection)
        self.builder = BlockBuilder(chosen)
        self.most_frames = FILTERED_FRAMES if chosen.in_python else NO_LIMIT
        self.live: LiveBlocks | None = None
        self._timed = False  # the task will look no later than the block that is being built is due
        self._behind_at = 0  # when the thread was last seen to be behind (ns)
        self._segment_began = now_ns()
        self._wake = trio.Event()
        self._rotate = self._full = False
        self._dropping = False  # later records are not written
        self._owed = False  # the preambles of a segment that began meanwhile
        self._missed: Missed | None = None
        self._reported: Missed | None = None  # to the thread, in the outage that is not over
        self._held_until: int | None = None
        self._credit, self._credit_at = _SLOWDOWN_CREDIT, now_ns()
        self._outage: tuple[str, int] | None = None  # its reason and its beginning (ns)
        self._closing = False
        self._writer.open_segment()

    def _info(self) -> SegmentInfo:
        settings = self.settings.described()
        if self._retention is not None:
            settings["keep"] = self._retention.described()
        mono, wall = self._clocks.read()
        return SegmentInfo(self.id, self.boot, wall, mono, self._seed, self.rules, settings)

    # -- the traffic path

    def put(self, item: Item) -> None:
        """Record an item; it never blocks and never raises."""
        self._clocks.begin(self.builder)
        self.builder.put(item)
        self.added()

    def added(self) -> None:
        """Seal the block if it is full; call after adding records other than by `put`."""
        builder = self.builder
        if builder.begun and not self._timed:
            self._timed = True
            self._wake.set()
        if builder.size >= (KEPT if self._dropping else BLOCK_SIZE):
            self._seal()
        waiting = self.waiting
        if waiting > self.settings.queue and not self._full:
            self._overflow()
        elif waiting > self.settings.queue // 2 + _SLOWDOWN_MARGIN and self.settings.overflow == "gap":
            self._slow_down()

    @property
    def waiting(self) -> int:
        """The number of bytes that are not written yet, and what their blocks take beside them."""
        return self._thread.waiting + self.builder.size

    def seal(self) -> None:
        """Seal the records so far, for live viewers; in an outage only viewers get them."""
        if self.builder.begun:
            self._seal()
        if self._dropping:
            self._miss(missed := self.builder.keep())
            if self.live is not None:
                self.live.missed(missed)

    def _seal(self) -> None:
        mono0, block = self.builder.mono0, self.builder.seal()
        if self.live is not None:
            self.live.sealed(block, mono0)
        if self._dropping:
            self._miss(Missed(mono0, now_ns(), block.frames, block.length))
            self.builder.drop()
            return
        self.frames += block.frames
        self._thread.write(block)
        if self._due_to_rotate():
            self._wake.set()

    # -- outages

    def _miss(self, missed: Missed | None) -> None:
        """Count what is not written."""
        if missed is not None:
            t0, _, frames, size = self._missed or (missed.t0, 0, 0, 0)
            self._missed = Missed(t0, missed.t1, frames + missed.frames, size + missed.bytes)

    def _overflow(self) -> None:
        self._full = True
        if self.builder.begun:
            self._seal()
        if self.settings.overflow == "gap":
            self._dropping = True
            self._begin_outage(self._thread.failure or SLOW, "traffic is not recorded")
        elif self.settings.overflow == "close":
            self._refuse(self._thread.failure or SLOW)
        elif self._admission.refusal is None:
            self._hold_up(self.settings.wait)
        self._thread.notify_room()

    def _slow_down(self) -> None:
        """Pause traffic a little for the disk, unless it was paused too much already."""
        now = now_ns()
        if self._admission.held or self._outage is not None:
            return
        self._credit = min(_SLOWDOWN_CREDIT, self._credit + int((now - self._credit_at) * _SLOWDOWN_SHARE))
        self._credit_at = now
        if self._credit > _SLOWDOWN_CREDIT // 10:
            self._hold_up(self._credit)
            self._thread.notify_room()

    def _hold_up(self, ns: int) -> None:
        self._admission.hold()
        self._held_until = now_ns() + ns
        self._wake.set()

    def _on_failure(self, reason: str) -> None:
        if self._closing or self.settings.overflow == "gap":
            self._begin_outage(reason, "frames wait in memory")
        else:
            self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        self._held_until = None
        if self._admission.refusal is None:
            self._admission.refuse(reason)
            self._begin_outage(reason, "connections are closed, and new ones refused")
            self._end_all(reason)

    def _begin_outage(self, reason: str, meanwhile: str) -> None:
        if self._outage is None or (self._outage[0] == SLOW != reason):
            since = now_ns() if self._outage is None else self._outage[1]
            self._outage = reason, since
            self._emit(Notice(now_ns(), None, "error", f"recording suspended: {reason}, {meanwhile}"))

    def _resume(self) -> None:
        self._full = False
        owed = self._preambles() if self._owed else None
        self._report_missed()
        self._stop_holding()
        if owed is not None:
            self._owed = False
            self._introduce(owed)
        if not self._closing:  # else the frames missing at the end are not known yet
            self._end_outage()

    def _end_outage(self) -> None:
        outage, self._outage = self._outage, None
        missed, self._reported = self._reported, None
        if outage is not None:
            _, _, frames, size = missed or (0, 0, 0, 0)
            self._emit(RecordingResumed(now_ns(), None, outage[0], size, frames, outage[1]))

    def _report_missed(self) -> None:
        """Let the thread record what was dropped, and drop no more."""
        if not self._dropping:
            return
        self.seal()
        self._dropping = False
        missed, self._missed = self._missed, None
        if missed is not None:
            reason = self._outage[0] if self._outage is not None else SLOW
            mono, wall = self._clocks.read()
            self._thread.miss(Loss(reason, missed.t0, missed.t1, wall - mono + missed.t1, *missed[2:]))
            self._reported = missed

    def _on_expired(self, expired: Expired) -> None:
        segments, size = self.expired
        self.expired = segments + expired.segments, size + expired.bytes
        for notice in expired.notices():
            self._emit(notice)

    def _stop_holding(self) -> None:
        """Resume traffic; the time that it was paused under `gap` is taken from the credit."""
        now = now_ns()
        if self._held_until is not None:
            self._held_until = None
            self._credit -= now - self._credit_at
            self._credit_at = now
        self._admission.open()

    # -- the task

    async def run(self) -> None:
        """Write until `close`; it runs in the proxy's nursery."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time)
            await trio.to_thread.run_sync(self._thread.run, limiter=trio.CapacityLimiter(1))
            nursery.cancel_scope.cancel()
        self._report_end()

    def _report_end(self) -> None:
        failure, lost = self._thread.failure, self._thread.given_up
        if failure is None and lost is None:
            self._end_outage()
            return
        reason = failure if lost is None else lost.reason
        counts = [(one.frames, one.bytes) for one in (lost, self._reported) if one is not None]
        frames, size = sum(one[0] for one in counts), sum(one[1] for one in counts)
        self.failure = f"{reason}: {frames} frames at its end are not in it"
        facts: dict[str, object] = {"missing_frames": frames, "missing_bytes": size}
        self._emit(Notice(now_ns(), None, "error", self.failure, facts))

    async def _keep_time(self) -> None:
        """Seal blocks in time, begin segments when they are due, end pauses of traffic in time."""
        while not self._closing:
            await self._until_due()
            now = now_ns()
            if self._thread.behind:
                self._behind_at = now
            elif now >= self._due():
                self._seal()
            if self._held_until is not None and now >= self._held_until:
                if self.settings.overflow == "gap":
                    self._stop_holding()
                else:
                    self._refuse(f"{SLOW} for {self.settings.wait / 1e9:g} s")
            if self._rotate or self._due_to_rotate():
                self._rotate = False
                self._next_segment()
        self._report_missed()
        if self.builder.begun:
            self._seal()
        self._thread.end()

    async def _until_due(self) -> None:
        if self._rotate or self._closing:
            await trio.lowlevel.checkpoint()
            return
        self._wake = trio.Event()
        self._timed = self.builder.begun  # a later block is due later
        with trio.move_on_at(min(self._due(), self._held_until or inf) / 1e9):
            await self._wake.wait()

    def _due(self) -> float:
        """Return when the block that is being built is to be sealed, at the latest (ns)."""
        return max(self.builder.mono0, self._behind_at) + self.settings.flush if self.builder.begun else inf

    def _due_to_rotate(self) -> bool:
        size, interval = self.settings.rotate_size, self.settings.rotate_interval
        due = self._writer.full(size) or 0 < interval <= now_ns() - self._segment_began
        return due and not self._thread.segments

    def _next_segment(self) -> None:
        preambles = self._preambles()  # first of all: no frame may come in between
        if self.builder.begun:
            self._seal()
        self._segment_began, self._owed = now_ns(), self._dropping
        self._thread.begin_segment(self._info())
        self._introduce(preambles)

    def _introduce(self, preambles: Iterable[Preamble]) -> None:
        for preamble in preambles:
            self.put(preamble)

    # -- control

    @property
    def file(self) -> Path | None:
        """The file of the current segment."""
        return self._writer.file

    @property
    def size(self) -> int:
        """The size of the current segment in bytes: whole blocks only."""
        return self._writer.size

    def rotate(self) -> None:
        """Begin a new segment; in an outage no more than two of them wait."""
        if self._thread.segments < 2:
            self._rotate = True
            self._wake.set()

    def close(self) -> None:
        """Write the rest and end `run`."""
        self._closing = True
        self._admission.open()
        self._wake.set()
