"""Captures as a stream: `spark.readStream.format("natscap")`, each block exactly once while they grow.

    spark.readStream.format("natscap").load("captures/").writeStream...

**Offsets** are `{recorder: [segment, byte]}`: all bytes of that recorder before that byte of that segment
have been read.  There is one entry per recorder, however many segments it has.  If a segment is complete (it
has its index, or there is a later one), the offset is the beginning of the next, so a complete segment that
was read may be removed.  Spark compares offsets as text, so keys are always sorted.

**Only whole blocks** are read; a half-written block waits until it is whole.  Files are listed before they
are read: a segment that was not the last one in the list does not grow any more.

**Batches** are bounded by `maxBytesPerTrigger` (at least one block each, whatever its size).  Blocks of
several recorders are read in the order of their times, so that no recorder falls behind the others: a
watermark is the maximum over all of them.  With `Trigger.AvailableNow` the stream ends at the blocks that
were there when it began.

**Order**: the segments of a recorder are read by number.  A missing segment stops the stream with an error
that names it, since it may still arrive (`failOnDataLoss=false` skips it).  A recorder that exists when a
stream first starts is read from its lowest segment, one that appears later from segment 0.

**Retention**: if a recorder deletes old segments (`--record-keep`, which its segments note), missing ones
that are older than the existing ones will not arrive.  The stream goes on, with a row of damage that reports
what was deleted before it was read; with `failOnDataLoss=false` it does so for every loss.

The same offsets always give the same partitions and rows, as long as the segments exist: Spark may ask again
after a crash.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from natsproxy.capture.format.blocks import BlockKind
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError, MissingCapture, TruncatedCapture
from natsproxy.spark.source.arrow_batches import arrow_schema, read_partition
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.partitions import pack
from natsproxy.spark.source.paths import listing, open_for_planning
from natsproxy.spark.source.survey import SegmentFile, contents
from natsproxy.spark.source.walk import START, Damage, FoundBlock, walk

if TYPE_CHECKING:
    import pyarrow as pa

Position = tuple[int, int]
"""A segment number and a byte in it; byte 0 is its beginning."""
Offsets = dict[str, list[int]]
Files = dict[str, dict[int, str]]
"""The existing segments: recorder -> number -> file."""


class SegmentIdentity(NamedTuple):
    """The recorder of a segment, its number, and whether the recorder deletes old segments."""

    recorder: str
    number: int
    limited: bool


class BlockEnd(NamedTuple):
    """The end of one block: its recorder's position after it, the block's time (Unix ns) and size (bytes).

    The time comes first, since blocks of several recorders are merged in this order.
    """

    wall: int
    recorder: str
    position: Position
    size: int


class NatscapStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader; it stays on the driver, only `read` runs on the workers."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._known: dict[str, SegmentIdentity] = {}
        self._stop_at: dict[str, Position] | None = None  # only with Trigger.AvailableNow

    # -- called by Spark

    def initialOffset(self) -> Offsets:
        """Return the offsets of the first segments that exist."""
        return {recorder: [min(files), 0] for recorder, files in sorted(self._files().items())}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch, in bytes."""
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the current ends: the query goes no further."""
        self._stop_at = self._ends(self._files())

    def reportLatestOffset(self) -> Offsets:
        """Return the current ends, for the query's progress."""
        return _offsets(self._stop_at if self._stop_at is not None else self._ends(self._files()))

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch."""
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None  # else all blocks
        files, positions = self._files(), _positions(start)
        taken = 0
        with ExitStack() as open_files:  # the merge is left early, with one segment of each recorder open
            blocks = [
                open_files.enter_context(
                    closing(self._recorder_blocks(recorder, numbered, positions.get(recorder, (0, 0))))
                )
                for recorder, numbered in files.items()
            ]
            for block in heapq.merge(*blocks):
                if most is not None and taken and taken + block.size > most:
                    break
                taken += block.size
                positions[block.recorder] = block.position
        return _offsets(positions)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the partitions between two offsets."""
        files, begin = self._files(), _positions(start)
        taken: list[SegmentFile] = []
        for recorder, (last, byte) in _positions(end).items():
            first, since = begin.get(recorder, (0, 0))
            numbered = files.get(recorder, {})
            expected = first
            for number in self._in_order(recorder, numbered, first, last - (byte == 0)):
                low = max(since, START) if number == first else START
                high = byte if number == last else None
                try:
                    segment = contents(numbered[number], self._options.query, low, high)
                except MissingCapture:
                    continue  # deleted since the files were listed
                if number > expected:
                    taken.append(_lost(recorder, expected, number - 1, segment.wall))
                taken.append(segment)
                expected = number + 1
            if expected <= last - (byte == 0):
                taken.append(_lost(recorder, expected, last - (byte == 0), 0))
        return list(pack(taken, self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch per block."""
        return read_partition(partition, arrow_schema(self._schema), self._options)

    # -- the segments

    def _files(self) -> Files:
        """Return the segments whose headers are written; each header is read once."""
        files: Files = {}
        known = {}
        for name in [name for place in self._options.paths for name in listing(place)]:
            found = self._known.get(name) or _identity(name)
            if found is None:
                continue
            known[name] = found
            recorder, number, _ = found
            other = files.setdefault(recorder, {}).setdefault(number, name)
            if other != name:
                raise CaptureError(f"this and {other} are the same segment of one recorder", path=name)
        self._known = known
        return dict(sorted(files.items()))

    def _ends(self, files: Files) -> dict[str, Position]:
        """Return the position after the last whole block of each recorder."""
        ends = {}
        for recorder, numbered in files.items():
            last = max(numbered)
            ends[recorder] = (last, 0)
            with suppress(MissingCapture):  # deleted in the meantime
                for block in self._segment_blocks(recorder, last, numbered[last], 0, over=False):
                    ends[recorder] = block.position
        return ends

    def _recorder_blocks(
        self, recorder: str, files: dict[int, str], start: Position
    ) -> Generator[BlockEnd, None, None]:
        """Yield the blocks of one recorder after `start`, up to the end that AvailableNow has set."""
        stop_at = (1 << 62, 0) if self._stop_at is None else self._stop_at.get(recorder, (0, 0))
        last = max(files)
        for number in self._in_order(recorder, files, start[0], min(last, stop_at[0])):
            since = start[1] if number == start[0] else 0
            try:
                for block in self._segment_blocks(recorder, number, files[number], since, over=number < last):
                    if block.position > stop_at:
                        return
                    yield block
            except MissingCapture:
                return  # deleted since the files were listed: the next list is without it

    def _segment_blocks(
        self, recorder: str, number: int, name: str, byte: int, *, over: bool
    ) -> Iterator[BlockEnd]:
        """Yield the blocks of one segment after a byte.

        The last one of a complete segment ends at the beginning of the next segment.
        """
        with open_for_planning(name) as file:
            indexed = file.indexed() if byte <= START else None
            last = None
            for found in indexed if indexed is not None else walk(file, max(byte, START), over=over):
                block = _block_end(recorder, number, file, found)
                over = over or (isinstance(found, FoundBlock) and found.block.kind == BlockKind.INDEX)
                if block is not None:
                    if last is not None:
                        yield last
                    last = block  # held back: the last one gets another position if the segment is complete
        if over or indexed is not None:
            last = (last or BlockEnd(0, recorder, (number, 0), 0))._replace(position=(number + 1, 0))
        if last is not None:
            yield last

    def _in_order(self, recorder: str, files: dict[int, str], first: int, last: int) -> Iterator[int]:
        """Yield the numbers from first to last that exist.

        Raises CaptureError for a missing one, unless it may be lost.
        """
        expected = first
        for number in sorted(number for number in files if first <= number <= last):
            if number != expected and not self._may_be_lost(files, expected):
                break
            expected = number + 1
            yield number
        else:
            if expected > last or self._may_be_lost(files, expected):
                return
        text = (
            f"segment {expected} of recorder {recorder} is missing: wait for it, or set failOnDataLoss=false"
        )
        raise CaptureError(text, path=", ".join(self._options.paths))

    def _may_be_lost(self, files: dict[int, str], number: int) -> bool:
        """Tell whether a missing segment is no reason to stop."""
        if not self._options.fail_on_loss:
            return True
        if files:  # the oldest are deleted first: one between others may still arrive
            return number < min(files) and self._known[files[min(files)]].limited
        return any(known.limited for known in self._known.values())  # a later run has deleted all of this one


def _lost(recorder: str, first: int, last: int, wall: int) -> SegmentFile:
    """Return a placeholder for deleted segments, with a row of damage."""
    name = f"segment {first}" if first == last else f"segments {first} to {last}"
    reason = f"{name} of recorder {recorder} were deleted before they were read"
    return SegmentFile("", (recorder, "", first), wall, 0, (), (Damage(0, 0, reason),))


def _block_end(
    recorder: str, number: int, file: CaptureFile, found: FoundBlock | BlockRef | Damage
) -> BlockEnd | None:
    """Return the end of a block or of damage; None for a block without records."""
    if isinstance(found, Damage):
        return BlockEnd(file.segment.wall, recorder, (number, found.end), found.end - found.offset)
    ref = found if isinstance(found, BlockRef) else found.ref
    if ref is None:
        return None
    size = ref.block.end - ref.block.offset
    return BlockEnd(ref.summary.wall0, recorder, (number, ref.block.end), size)


def _identity(name: str) -> SegmentIdentity | None:
    """Return the identity of a segment; None for one without a header yet, or deleted in the meantime."""
    try:
        with open_for_planning(name) as file:
            segment = file.segment
            return SegmentIdentity(segment.recorder.hex(), segment.number, "keep" in segment.settings)
    except (TruncatedCapture, MissingCapture):
        return None


def _positions(offsets: Offsets) -> dict[str, Position]:
    return {recorder: (number, byte) for recorder, (number, byte) in offsets.items()}


def _offsets(positions: dict[str, Position]) -> Offsets:
    return {recorder: list(positions[recorder]) for recorder in sorted(positions)}
