"""The writer thread of a recorder: it writes sealed blocks to the capture, one after another.

The writer has a thread of its own: a round of the loop for each block would cost a time slice of every busy
connection, and at full load more traffic comes in that time than a block holds.  Nearly all the time of the
thread goes into calls that release the interpreter lock (checksum, compression, writev), so traffic does not
wait for it.

The thread repeats a write that fails (a full disk, a removed folder, a device error) after pauses that grow;
the blocks behind it wait in memory, and the recorder bounds them and seals no small ones meanwhile.  The loop
gets two calls for an outage: one when writing first fails, and one when writing goes on and the queue has
room again.

The thread accounts for every block that it gets, and for what the recorder had no room for:
1. A block is written whole, or it is given up and becomes a part of the loss.  Only after `end` are blocks
   given up.
2. The loss goes into the capture as a gap record before any later block, and before the index.
3. A capture with a loss that has no gap record gets no index: it is not closed, and says so.

Old segments are deleted here too (`retention.py`), so that no traffic waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from natsproxy.capture.format.records import GapRecord
from natsproxy.capture.write.builder import BlockBuilder, SealedBlock
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.errors import CaptureError
from natsproxy.net.retention import Expired, Retention

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two attempts."""
BLOCK_COST: Final = 8192
"""Bytes of memory that a waiting block takes beside its length: the rest of its last page, its summary."""
_MANY: Final = 8  # jobs that wait


class Loss(NamedTuple):
    """Traffic that is not in the capture: see `records.GapRecord`.  wall: the wall clock at `t1`."""

    reason: str
    t0: int
    t1: int
    wall: int
    frames: int
    bytes: int

    def joined(self, later: Loss) -> Loss:
        """Return both losses as one."""
        return later._replace(
            reason=self.reason,
            t0=self.t0,
            frames=self.frames + later.frames,
            bytes=self.bytes + later.bytes,
        )

    def block(self) -> SealedBlock:
        """Return the block with its gap record."""
        info = {
            "reason": self.reason,
            "t0": self.t0,
            "t1": self.t1,
            "frames": self.frames,
            "bytes": self.bytes,
        }
        builder = BlockBuilder()
        builder.begin(self.t1, self.wall)
        builder.add(GapRecord(None, self.t1, info))
        return builder.seal()


def loss_of(block: SealedBlock, reason: str) -> Loss:
    """Return the loss of a block."""
    mono0, wall0, first, last = block.summary[:4]
    return Loss(reason, mono0 + first, mono0 + last, wall0 + last, block.frames, block.length)


Job = SealedBlock | Loss | SegmentInfo | None
"""A block, what is missing between two blocks, a new segment; None for the end."""


class WriterThread:
    """Writes blocks and begins segments, in the order in which they are given.

    call_in_loop: calls a function in the loop's thread, soon.  on_failure: called there with the reason.
    on_expired: called there when `retention` has deleted segments.
    on_room: called there when no more than `low` bytes wait, after a failure or `notify_room`.
    failure: the reason while writing fails.  given_up: the blocks that could not be written after `end`.
    unrecorded: the loss that has no gap record yet.
    """

    def __init__(
        self,
        writer: CaptureWriter,
        *,
        retention: Retention | None,
        low: int,
        call_in_loop: Callable[..., Any],
        on_failure: Callable[[str], None],
        on_room: Callable[[], None],
        on_expired: Callable[[Expired], None],
    ) -> None:
        self.failure: str | None = None
        self.given_up: Loss | None = None
        self.unrecorded: Loss | None = None
        self._writer = writer
        self._retention = retention
        self._low = low
        self._call_in_loop, self._on_failure, self._on_room = call_in_loop, on_failure, on_room
        self._on_expired = on_expired
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._ending = threading.Event()
        self._notify = False
        # Each counter is changed by one thread only, the loop's or ours: an addition is not atomic.
        self._bytes_given = self._bytes_written = 0
        self._segments_given = self._segments_begun = 0

    # -- called in the loop's thread

    @property
    def waiting(self) -> int:
        """The number of bytes that blocks take which are not written yet."""
        return self._bytes_given - self._bytes_written

    @property
    def behind(self) -> bool:
        """True while so many blocks wait that sealing a small one would only cost memory."""
        return self._jobs.qsize() >= _MANY

    @property
    def segments(self) -> int:
        """The number of new segments in the queue."""
        return self._segments_given - self._segments_begun

    def write(self, block: SealedBlock) -> None:
        """Put a block in the queue."""
        self._bytes_given += block.length + BLOCK_COST
        self._jobs.put(block)

    def miss(self, loss: Loss) -> None:
        """Put a loss in the queue: later blocks come behind its gap record."""
        self._jobs.put(loss)

    def begin_segment(self, info: SegmentInfo) -> None:
        """Put a new segment in the queue: later blocks go into it."""
        self._segments_given += 1
        self._jobs.put(info)

    def notify_room(self) -> None:
        """Have `on_room` called once the queue has room."""
        self._notify = True
        if self.waiting <= self._low:  # the thread may have written the last block just before
            self._notify_now()

    def end(self) -> None:
        """Let `run` end after the last write; what fails from now on is tried once more, then given up."""
        self._ending.set()
        self._jobs.put(None)

    # -- runs in the writer's thread

    def run(self) -> None:
        """Write until `end`, then index and close the segment."""
        self._look()
        job = self._next()
        while self._carry_out(job):
            job = self._next()

    def _next(self) -> Job:
        """Wait for the next job; segments that become too old meanwhile are deleted."""
        while True:
            due = self._retention.due() if self._retention is not None else None
            try:
                return self._jobs.get(timeout=due)
            except Empty:
                self._make_room(self._writer.size)

    def _carry_out(self, job: Job) -> bool:
        """Write until it succeeds or is given up; False after the last job."""
        if isinstance(job, Loss):
            self._lose(job)
        pause, last = FIRST_PAUSE, False
        while True:
            try:
                self._attempt(job)
            except CaptureError as error:
                if self.failure is None:
                    self.failure = str(error)
                    self._notify = True
                    self._call_in_loop(self._on_failure, self.failure)
                if last:
                    self._give_up(job, self.failure)
                    break
                last = self._ending.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self.failure = None
                break
        if isinstance(job, SegmentInfo):
            self._segments_begun += 1
        elif job is not None and not isinstance(job, Loss):
            self._bytes_written += job.length + BLOCK_COST
        if self._notify and self.failure is None and self.waiting <= self._low:
            self._notify_now()
        return job is not None

    def _attempt(self, job: Job) -> None:
        if isinstance(job, SegmentInfo):
            self._writer.open_segment(job)
            self._look()
            return
        if self.unrecorded is not None:
            self._write(self.unrecorded.block())
            self.unrecorded = None
        if job is None:
            self._writer.close()
        elif not isinstance(job, Loss):
            self._write(job)

    def _write(self, block: SealedBlock) -> None:
        self._make_room(self._writer.size + block.length)
        self._writer.write(block)

    def _lose(self, loss: Loss) -> None:
        self.unrecorded = loss if self.unrecorded is None else self.unrecorded.joined(loss)

    def _give_up(self, job: Job, reason: str) -> None:
        if job is None:
            self._writer.abandon()
        elif not isinstance(job, Loss | SegmentInfo):  # a loss stays; the present segment goes on
            loss = loss_of(job, reason)
            self.given_up = loss if self.given_up is None else self.given_up.joined(loss)
            self._lose(loss)

    def _look(self) -> None:
        """Look for segments that are finished now, and delete those beyond the limits."""
        if self._retention is not None and self._writer.file is not None:
            try:
                self._retention.look(self._writer.file)
            except OSError as error:
                reason = f"cannot look for old segments: {error.strerror}"
                self._call_in_loop(self._on_expired, Expired(0, 0, "", reason))
            self._make_room(self._writer.size)

    def _make_room(self, more: int) -> None:
        expired = self._retention.make_room(more) if self._retention is not None else None
        if expired is not None:
            self._call_in_loop(self._on_expired, expired)

    def _notify_now(self) -> None:
        self._notify = False
        self._call_in_loop(self._on_room)
