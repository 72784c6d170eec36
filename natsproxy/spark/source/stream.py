"""`spark.readStream.format("natscap")`: captures as they grow, each block exactly once.

    spark.readStream.format("natscap").load("captures/").writeStream...

**Offsets** are `{recorder: [segment, byte]}`: of each recorder, what lies before that byte of that segment
has been taken.  One entry per recorder, however many segments there are.  Where a segment is over (it has
its index, or there is a later one), the offset is the beginning of the next, so a segment that was read and
is over may be removed.  Spark compares offsets as text: keys are always sorted.

**Only whole blocks** are taken; one that is half written is taken when it is whole.  Files are listed
before they are walked: a segment that was not the last one in the list gets nothing more.

**Batches** are bounded by `maxBytesPerTrigger` (at least one block each, whatever its size).  Blocks of
several recorders are taken in the order of their times, so that no recorder falls behind the others: a
watermark is the maximum over all of them.  `Trigger.AvailableNow` ends at what was there when it began.

**Order**: the segments of a recorder are taken by number.  A missing one stops the stream with an error
that names it (`failOnDataLoss=false` goes on behind it): it may still be on its way.  A recorder that is
there when a stream first begins is taken from its lowest segment, one that appears later from segment 0.

The same offsets give the same partitions and rows, always: Spark may ask again after a crash.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from natsproxy.capture.format.blocks import Kind
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError, TruncatedCapture
from natsproxy.spark.source.data_source import arrow_schema, read_run
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.partitions import START, Damage, Found, runs, walk
from natsproxy.spark.source.paths import PLAN_BUFFER, listing, open_segment

if TYPE_CHECKING:
    import pyarrow as pa

Place = tuple[int, int]
"""A segment number and a byte in it; byte 0 is its beginning."""
Offsets = dict[str, list[int]]
Files = dict[str, dict[int, str]]
"""The segments that are there: recorder -> number -> file."""


class Step(NamedTuple):
    """One step of a recorder: the place after it, its bytes and its time (wall clock, ns)."""

    wall: int
    recorder: str
    place: Place
    size: int


class NatscapStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream over all captures of a place; it lives on the driver, `read` on the workers."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._known: dict[str, tuple[str, int]] = {}
        self._fence: dict[str, Place] | None = None

    # -- what Spark asks

    def initialOffset(self) -> Offsets:
        """Return the beginning of what is there."""
        return {recorder: [min(files), 0] for recorder, files in sorted(self._files().items())}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the bound of a batch."""
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where everything ends now: this run goes no further."""
        self._fence = self._ends(self._files())

    def reportLatestOffset(self) -> Offsets:
        """Return where everything ends now, for the query's progress."""
        return _offsets(self._fence if self._fence is not None else self._ends(self._files()))

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return how far the next batch goes."""
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None  # else all there is
        files, places = self._files(), _places(start)
        taken = 0
        with ExitStack() as lanes:
            steps = [
                lanes.enter_context(closing(self._lane(recorder, here, places.get(recorder, (0, 0)))))
                for recorder, here in files.items()
            ]
            for step in heapq.merge(*steps):
                if most is not None and taken and taken + step.size > most:
                    break
                taken += step.size
                places[step.recorder] = step.place
        return _offsets(places)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the runs of blocks between two offsets."""
        files, begin = self._files(), _places(start)
        found: list[InputPartition] = []
        for recorder, (last, byte) in _places(end).items():
            first, since = begin.get(recorder, (0, 0))
            here = files.get(recorder, {})
            for number in self._in_order(recorder, here, first, last - (byte == 0)):
                low = max(since, START) if number == first else START
                found += runs(here[number], self._options, low, byte if number == last else None)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch per block."""
        return read_run(partition, arrow_schema(self._schema), self._options)

    # -- what is there

    def _files(self) -> Files:
        """Return the segments whose headers are written; each header is read once."""
        files: Files = {}
        known = {}
        for name in [name for place in self._options.paths for name in listing(place)]:
            found = self._known.get(name) or _identity(name)
            if found is None:
                continue
            known[name] = found
            recorder, number = found
            other = files.setdefault(recorder, {}).setdefault(number, name)
            if other != name:
                raise CaptureError(f"this and {other} are the same segment of one recorder", path=name)
        self._known = known
        return dict(sorted(files.items()))

    def _ends(self, files: Files) -> dict[str, Place]:
        ends = {}
        for recorder, here in files.items():
            last = max(here)
            steps = self._segment(recorder, last, here[last], 0, over=False)
            ends[recorder] = max((step.place for step in steps), default=(last, 0))
        return ends

    def _lane(self, recorder: str, files: dict[int, str], start: Place) -> Generator[Step, None, None]:
        """Yield what one recorder has behind `start`, up to the fence."""
        fence = (1 << 62, 0) if self._fence is None else self._fence.get(recorder, (0, 0))
        last = max(files)
        for number in self._in_order(recorder, files, start[0], min(last, fence[0])):
            since = start[1] if number == start[0] else 0
            for step in self._segment(recorder, number, files[number], since, over=number < last):
                if step.place > fence:
                    return
                yield step

    def _segment(self, recorder: str, number: int, name: str, byte: int, *, over: bool) -> Iterator[Step]:
        """Yield what one segment has behind a byte; the last step of one that is over leads to the next."""
        with open_segment(name, PLAN_BUFFER) as file:
            indexed = file.indexed() if byte <= START else None
            last = None
            for found in indexed if indexed is not None else walk(file, max(byte, START), over=over):
                step = _step(recorder, number, file, found)
                over = over or (isinstance(found, Found) and found.block.kind == Kind.INDEX)
                if step is not None:
                    if last is not None:
                        yield last
                    last = step
        if over or indexed is not None:
            last = (last or Step(0, recorder, (number, 0), 0))._replace(place=(number + 1, 0))
        if last is not None:
            yield last

    def _in_order(self, recorder: str, files: dict[int, str], first: int, last: int) -> Iterator[int]:
        """Yield the numbers from first to last that are there; a missing one is lost, or an error."""
        expected = first
        for number in sorted(number for number in files if first <= number <= last):
            if number != expected and self._options.fail_on_loss:
                break
            expected = number + 1
            yield number
        else:
            if expected > last or not self._options.fail_on_loss:
                return
        text = (
            f"segment {expected} of recorder {recorder} is missing: wait for it, or set failOnDataLoss=false"
        )
        raise CaptureError(text, path=", ".join(self._options.paths))


def _step(recorder: str, number: int, file: CaptureFile, found: Found | BlockRef | Damage) -> Step | None:
    if isinstance(found, Damage):
        return Step(file.segment.wall, recorder, (number, found.end), found.end - found.offset)
    ref = found if isinstance(found, BlockRef) else found.ref
    if ref is None:
        return None
    size = ref.block.end - ref.block.offset
    return Step(ref.summary.wall0, recorder, (number, ref.block.end), size)


def _identity(name: str) -> tuple[str, int] | None:
    """Return the recorder and number of a segment; None for one that has not begun."""
    try:
        with open_segment(name, PLAN_BUFFER) as file:
            return file.segment.recorder.hex(), file.segment.number
    except TruncatedCapture:
        return None  # created, nothing written yet


def _places(offsets: Offsets) -> dict[str, Place]:
    return {recorder: (number, byte) for recorder, (number, byte) in offsets.items()}


def _offsets(places: dict[str, Place]) -> Offsets:
    return {recorder: list(places[recorder]) for recorder in sorted(places)}
