"""A sample of the traffic in memory, for live viewers; the traffic itself stays on the native plane.

Records are made as for a capture, without secrets.  If no capture is being made, a separate builder takes
them: between two looks it keeps the first `KEPT` bytes and counts the rest.  If one is, the sample is the
first block with frames that the recorder seals between two looks, and the others are counted; viewers then
see what the capture has, and `selection` is ignored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from natsproxy.capture.filter.recording_filter import RecordingFilter, Selection
from natsproxy.capture.format.records import Item
from natsproxy.capture.write.builder import BlockBuilder, Missed, SealedBlock
from natsproxy.net.clock import BlockClocks
from natsproxy.wire.frames import NO_LIMIT

KEPT: Final = 64 * 1024
"""Bytes that are kept between two looks."""
FILTERED: Final = 2048
"""The frames of one record at most, where the pure filter looks at each."""


class Look(NamedTuple):
    """The traffic since the last look.  block: its first part, as a sample.  mono0: the time (ns) to which
    the times in the block are relative.  frames, bytes: of all of it.
    """

    block: SealedBlock | None
    mono0: int
    frames: int
    bytes: int


class LiveBlocks:
    """Takes records.  selection: of them; the frames without a subject are always among them.

    builder: of the sample, where no capture is being made.  most_frames: the frames of one record at most.
    """

    def __init__(self, selection: Selection) -> None:
        chosen = RecordingFilter(selection)
        self.builder = BlockBuilder(chosen)
        self.most_frames = FILTERED if chosen.in_python else NO_LIMIT
        self._clocks = BlockClocks()
        self._look = Look(None, 0, 0, 0)

    def put(self, item: Item) -> None:
        """Take an item."""
        self._clocks.begin(self.builder)
        self.builder.put(item)
        self.added()

    def added(self) -> None:
        """Keep no more once there is enough; called after records were added."""
        if self.builder.size >= KEPT and not self.builder.dropping:
            self.builder.drop()

    def sealed(self, block: SealedBlock, mono0: int) -> None:
        """Take a block of the recorder, which has just been sealed."""
        look = self._look
        # One without frames, of a note alone, is no sample.
        first, mono0 = (look.block, look.mono0) if look.block and look.block.frames else (block, mono0)
        self._look = Look(first, mono0, look.frames + block.frames, look.bytes + block.length)

    def missed(self, missed: Missed | None) -> None:
        """Count records that were not kept."""
        if missed is not None:
            look = self._look
            self._look = look._replace(frames=look.frames + missed.frames, bytes=look.bytes + missed.bytes)

    def go_on(self, before: LiveBlocks) -> None:
        """Take over the traffic that another sample has seen since the last look."""
        self._look = before.take()

    def take(self) -> Look:
        """Return the traffic since the last look."""
        missed = self.builder.keep()
        if self.builder.begun:
            mono0 = self.builder.mono0
            self.sealed(self.builder.seal(), mono0)
        self.missed(missed)
        look, self._look = self._look, Look(None, 0, 0, 0)
        return look
