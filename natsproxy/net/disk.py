"""The recorder's thread: sealed blocks to the capture, one after another, each until it is written.

It has a thread of its own because a trip through the loop for each block costs a turn of every busy
connection: at speed more traffic comes in that time than one block holds.  Nearly all of its time goes into
calls that release the interpreter lock (checksum, compression, writev), so traffic does not wait for it.

A write that fails (a full disk, a folder that is gone, a device that reports errors) is tried again, after
pauses that grow; the blocks behind it wait in memory, bounded by the recorder.  The loop is told twice: when
writing first fails, and when it goes on and the queue has room again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from natsproxy.capture.write.builder import SealedBlock
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two attempts."""


class Disk:
    """Writes blocks and begins segments, in the order in which they are given.

    tell: calls a function in the loop's thread, soon.  failed: called there with the reason.  eased: called
    there when no more than `low` bytes wait, after a failure or `when_eased`.
    """

    def __init__(
        self,
        writer: CaptureWriter,
        *,
        low: int,
        tell: Callable[..., Any],
        failed: Callable[[str], None],
        eased: Callable[[], None],
    ) -> None:
        self.lost_frames = 0
        self.failure: str | None = None
        self._writer = writer
        self._low = low
        self._tell, self._failed, self._eased = tell, failed, eased
        self._jobs: SimpleQueue[SealedBlock | SegmentInfo | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._alarm = False
        # Each is written by one thread only: an addition is not atomic.
        self._given = self._written = 0
        self._asked = self._begun = 0

    # -- the loop's side

    @property
    def waiting(self) -> int:
        """How many bytes are not written yet."""
        return self._given - self._written

    @property
    def rotating(self) -> bool:
        """Whether a segment was asked for and has not begun."""
        return self._asked != self._begun

    def write(self, block: SealedBlock) -> None:
        """Have a block written."""
        self._given += block.length
        self._jobs.put(block)

    def begin(self, info: SegmentInfo) -> None:
        """Have what follows written to a new segment."""
        self._asked += 1
        self._jobs.put(info)

    def when_eased(self) -> None:
        """Ask for a call of `eased`."""
        self._alarm = True
        if self.waiting <= self._low:  # the last block may have been written just before
            self._ring()

    def end(self) -> None:
        """Let `run` end when all is written; what fails from now on is tried once more and then lost."""
        self._hurry.set()
        self._jobs.put(None)

    # -- the thread's side

    def run(self) -> None:
        """Write until `end`, then index and close the segment."""
        while self._carry_out(self._jobs.get()):
            pass

    def _carry_out(self, job: SealedBlock | SegmentInfo | None) -> bool:
        pause, last = FIRST_PAUSE, False
        while True:
            try:
                self._attempt(job)
            except CaptureError as error:
                if self.failure is None:
                    self.failure = str(error)
                    self._alarm = True
                    self._tell(self._failed, self.failure)
                if last:
                    self._give_up(job)
                    break
                last = self._hurry.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self.failure = None
                break
        if isinstance(job, SealedBlock):
            self._written += job.length
        elif job is not None:
            self._begun += 1
        if self._alarm and self.failure is None and self.waiting <= self._low:
            self._ring()
        return job is not None

    def _attempt(self, job: SealedBlock | SegmentInfo | None) -> None:
        if isinstance(job, SealedBlock):
            self._writer.write(job)
        elif job is not None:
            self._writer.open_segment(job)
        else:
            self._writer.close()

    def _give_up(self, job: SealedBlock | SegmentInfo | None) -> None:
        if isinstance(job, SealedBlock):
            self.lost_frames += job.frames
        elif job is None:
            self._writer.abandon()

    def _ring(self) -> None:
        self._alarm = False
        self._tell(self._eased)
