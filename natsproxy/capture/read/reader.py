"""Reading of captures: a file, a folder of segments or a glob, also while they grow.

`open_capture` finds the segments, `runs.py` their order.  `CaptureReader.blocks()` walks headers and
summaries only, `items()` decodes the bodies too, and yields the items of several runs by time.  A capture
without an index, or one that is still being written, is read to its last whole block.  Memory is one block
per concurrent run, whatever the size of the file.

A recorder that has just opened a segment may have written no header yet: such a segment is empty, and is
skipped if there are others.

Of a segment that several files hold each block is read once (`copied.py`).

A recorder may delete old segments meanwhile.  An open one is read to its end.  One that is deleted before it
is opened is a loss: reported to `lost` where that is given, otherwise an error.
"""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from natsproxy.capture.format import records
from natsproxy.capture.format.blocks import MAGIC, BlockKind
from natsproxy.capture.names import of_file, segment_order
from natsproxy.capture.read.copied import Copy, copied, sentence
from natsproxy.capture.read.runs import CaptureRun, Head, by_time, head_of, heads, runs_of
from natsproxy.capture.read.segment import BlockRef, CaptureFile, Segment
from natsproxy.errors import MissingCapture, TruncatedCapture, UnreadableCapture

Keep = Callable[[BlockRef], bool]
"""A predicate: True for a block that is worth decoding."""
Tell = Callable[[str], None]
"""A function that is called with a sentence."""
T = TypeVar("T")


class CaptureReader:
    """A capture of one or several segments, read by run and by their numbers.

    lost: called for each segment that was deleted before it was read (without it, MissingCapture is raised),
    for each one that has no header yet, and for copies.  unbegun: those without a header among the segments
    read so far.
    """

    def __init__(self, paths: list[Path], lost: Tell | None = None) -> None:
        self.paths = paths
        self.unbegun: list[Path] = []
        self._lost = lost
        self._told = False  # of copies
        self._numbers: dict[bytes, int] = {}  # of the runs, by recorder

    @cached_property
    def _copies(self) -> dict[Path, Copy]:
        return copied(self.paths)

    @property
    def copies(self) -> str | None:
        """The warning about files that hold the same segment; None where there are none."""
        return sentence([(path, copy.of) for path, copy in self._copies.items()]) if self._copies else None

    @cached_property
    def runs(self) -> list[CaptureRun]:
        """The runs, by time."""
        return runs_of(self.paths)

    def files(self, run: CaptureRun | None = None) -> Iterator[CaptureFile]:
        """Yield the segments, or those of a run, each open until the next.

        A file without blocks of its own is left out.
        """
        if self._lost is not None and not self._told and (text := self.copies) is not None:
            self._told = True
            self._lost(text)
        for one in self.runs if run is None else (run,):
            for path in one.paths:
                copy = self._copies.get(path)
                if copy is not None and copy.whole:
                    continue
                file = self._opened(path)
                if file is not None:
                    with file:
                        number = self._numbers.setdefault(file.segment.recorder, one.number)
                        file.segment = replace(file.segment, run=number)
                        file.left_out = frozenset() if copy is None else copy.offsets
                        yield file

    def _opened(self, path: Path) -> CaptureFile | None:
        """Return a segment; None, after reporting it, where it is gone or has no header yet."""
        try:
            return CaptureFile(path)
        except MissingCapture as error:
            if self._lost is None:
                raise
            self._lost(str(error))
        except TruncatedCapture:
            self.unbegun.append(path)
            if self._lost is not None:
                self._lost(f"{path}: it has no header yet, so it is not read")
        return None

    def segments(self) -> Iterator[Segment]:
        """Yield the header of each segment."""
        for file in self.files():
            yield file.segment

    def blocks(self) -> Iterator[BlockRef]:
        """Yield the records blocks of all segments, headers and summaries only."""
        for file in self.files():
            yield from file.blocks()

    def items(self, keep: Keep | None = None) -> Iterator[tuple[BlockRef, records.Item]]:
        """Yield all items with their block, by time; `keep` selects the blocks.

        Those of one run come in the order in which they were recorded.
        """
        return self.by_time(lambda run: self.items_of(run, keep), lambda found: found[0].wall(found[1].t))

    def items_of(self, run: CaptureRun, keep: Keep | None = None) -> Iterator[tuple[BlockRef, records.Item]]:
        """Yield the items of a run, in the order in which they were recorded."""
        for file in self.files(run):
            for ref in file.blocks():
                if keep is None or keep(ref):
                    for item in file.items(ref):
                        yield ref, item

    def by_time(self, read: Callable[[CaptureRun], Iterator[T]], wall: Callable[[T], int]) -> Iterator[T]:
        """Yield what `read` yields of each run, by the wall clock (`runs.by_time`)."""
        return by_time(self.runs, read, wall)

    def tail(self) -> tuple[Path, int] | None:
        """Return the file that is cut short and the end of its last whole block, None if all is whole."""
        for path in self.paths:
            with CaptureFile(path) as file:
                offset = len(MAGIC)
                closed = False
                while (block := file.block_at(offset)) is not None:
                    closed = block.kind == BlockKind.INDEX
                    offset = block.end
                if not closed:
                    return path, offset
        return None


def open_capture(path: Path | str, lost: Tell | None = None) -> CaptureReader:
    """Return a reader of a file, a folder of segments, or a glob.

    lost: called for segments that are deleted before they are read (reading then goes on), for copies, and
    for the file in which the recording of a single file continues.  Raises UnreadableCapture if there is
    none, or if its format is newer than this reader, and CaptureError if its first file is not a capture.
    """
    where = Path(path)
    if where.is_dir():
        paths = segment_order(where.glob("*.ncap"))
        if not paths:
            raise UnreadableCapture("there is no capture (*.ncap) in this folder", path=where)
    elif where.exists():
        paths = [where]
    else:
        paths = segment_order(Path(name) for name in glob.glob(str(path)))  # noqa: PTH207 - absolute or not
        if not paths:
            raise UnreadableCapture("no such file or folder", path=where)
    while len(paths) > 1 and not os.path.lexists(paths[0]):  # it was deleted before the reading began
        del paths[0]
    for path in paths:  # raises the errors of the first one with a header here, not in the caller's loop
        try:
            with CaptureFile(path):
                break
        except TruncatedCapture:
            if path == paths[-1]:
                raise
    if lost is not None and paths == [where] and (text := _continuation(where)) is not None:
        lost(text)
    return CaptureReader(paths, lost)


def _continuation(path: Path) -> str | None:
    """Return the warning about the file in which the recording of `x.ncap` continues."""
    own = next(heads([path]), None)
    if own is None:
        return None
    others = sorted(heads(_beside(path)), key=attrgetter("start"))
    every = f"'{path.stem}*.ncap' reads all"
    for other in others:
        if other.recorder == own.recorder and other.number > own.number:
            return f"{path}: the recording goes on in {other.path.name}, which is not read ({every})"
    later = next((one for one in others if one.recorder != own.recorder and one.start >= own.start), None)
    if later is None:
        return None
    return f"{path}: a later run recorded to {later.path.name}, which is not read ({every})"


def _beside(path: Path) -> list[Path]:
    """Return the files in which the recording of `x.ncap` may continue."""
    return [other for other in segment_order(of_file(path)) if other != path]


def last_moment(reader: CaptureReader) -> int | None:
    """Return the wall clock (Unix ns) of the last item of a capture, None for an empty one.

    Only the last segment of each run is read.
    """
    last = [run.paths[-1] for run in reader.runs]
    moments = [
        ref.summary.wall0 + ref.summary.t_last
        for file in CaptureReader(last, lambda _: None).files()
        for ref in file.indexed() or file.blocks()
        if ref.summary.items
    ]
    return max(moments, default=None)


class Follower:
    """A growing capture: each `poll` yields the new items, across rotation.  The caller does the waiting.

    A file continues in the next one of its recorder, `x_<time>.ncap` after `x.ncap`.  lost: called for
    segments that were deleted before they were read.  Blocks of several runs between two polls come by time.
    """

    def __init__(self, path: Path | str, lost: Tell) -> None:
        self._path = Path(path)
        self._lost = lost
        self._heads: dict[Path, Head] = {}
        self._runs: dict[bytes, int] = {}  # their numbers
        self._offsets: dict[Path, int] = {}  # of the segments that may grow
        self._over: set[Path] = set()
        self._next: dict[bytes, int] = {}  # the number of the next segment of each recorder

    def pass_over(self, before: int) -> None:
        """Leave out the segments that have not been written since a time (Unix ns).

        The last one of each recorder is kept: it may still grow.
        """
        self._look(self._paths())
        last = {head.recorder: head.path for head in sorted(self._heads.values(), key=attrgetter("number"))}
        for path in self._heads.keys() - set(last.values()):
            with suppress(OSError):  # it is gone
                if path.stat().st_mtime_ns < before:
                    self._over.add(path)

    def poll(self) -> Iterator[tuple[BlockRef, records.Item]]:
        """Yield the items of the blocks that became whole since the last poll."""
        for file, ref in self.blocks():
            yield from ((ref, item) for item in file.items(ref))

    def blocks(self) -> Iterator[tuple[CaptureFile, BlockRef]]:
        """Yield the blocks that became whole since the last poll, each with its segment, which is open."""
        paths = self._paths()
        for path in self._offsets.keys() - set(paths):
            self._lost(f"{path}: it was deleted before its end was read")
            del self._offsets[path]
        for path in self._heads.keys() - set(paths):
            del self._heads[path]
        self._over.intersection_update(paths)
        self._look(paths)
        return by_time(self._growing(), self._new_blocks, lambda found: _begin(found[1]))

    def _paths(self) -> list[Path]:
        if self._path.is_dir():
            return segment_order(self._path.glob("*.ncap"))
        if self._path not in self._over:
            return [self._path]
        return [self._path, *(path for path in _beside(self._path) if self._continues(path))]

    def _continues(self, path: Path) -> bool:
        """Tell whether a file is of a recorder that is followed."""
        if path in self._heads:
            return True
        head = next(heads([path]), None)
        return head is not None and head.recorder in self._next

    def _look(self, paths: list[Path]) -> None:
        """Find the runs of new segments."""
        new: list[Head] = []
        for path in paths:
            if path not in self._heads:
                try:
                    with CaptureFile(path) as file:
                        new.append(head_of(file))
                except TruncatedCapture:
                    continue  # its first block is not written yet
                except MissingCapture:
                    if path == self._path:
                        raise
        for head in sorted(new, key=attrgetter("start", "number")):
            self._heads[head.path] = head
            self._runs.setdefault(head.recorder, len(self._runs) + 1)

    def _growing(self) -> list[CaptureRun]:
        """Return the runs with segments that may have new blocks."""
        segments = defaultdict[bytes, list[Head]](list)
        for head in sorted(self._heads.values(), key=attrgetter("number")):
            if head.path not in self._over:
                segments[head.recorder].append(head)
        runs = [
            CaptureRun(self._runs[recorder], of_run[0].start, tuple(head.path for head in of_run))
            for recorder, of_run in segments.items()
        ]
        return sorted(runs, key=attrgetter("start"))

    def _new_blocks(self, run: CaptureRun) -> Iterator[tuple[CaptureFile, BlockRef]]:
        for path in run.paths:
            try:
                file = CaptureFile(path)
            except MissingCapture:
                if path == self._path:
                    raise
                continue  # the next poll reports it
            with file:
                file.segment = replace(file.segment, run=run.number)
                if path not in self._offsets:
                    self._tell_of_missing(file.segment)
                offset = self._offsets.setdefault(path, len(MAGIC))
                for ref in file.blocks(offset):
                    yield file, ref
                    self._offsets[path] = ref.block.end  # after its items: an error lets them come again
                following = file.block_at(self._offsets[path])
                if following is not None and following.kind == BlockKind.INDEX:
                    del self._offsets[path]
                    self._over.add(path)

    def _tell_of_missing(self, segment: Segment) -> None:
        """Report the missing segments between the last one of a recorder and this one."""
        expected = self._next.get(segment.recorder, segment.number)
        if segment.number > expected:
            missing = f"segments {expected} to {segment.number - 1} of recorder {segment.recorder.hex()}"
            self._lost(f"{segment.path}: {missing} were deleted before they were read")
        self._next[segment.recorder] = max(expected, segment.number + 1)


def _begin(ref: BlockRef) -> int:
    """Return the wall clock of the first item of a block."""
    return ref.summary.wall0 + ref.summary.t_first
