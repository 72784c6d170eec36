"""Reading of captures: a file, a folder of segments or a glob, also while they grow.

`open_capture` finds the segments; `CaptureReader.blocks()` walks headers and summaries only, `items()`
decodes the bodies too.  A capture without an index, or one that is still being written, is read to its last
whole block.  Memory follows the size of a block, never that of the file.

A recorder that has just opened a segment has written no header yet: such a segment has nothing to read, and
is passed over beside others.

Of a segment that several files hold each block is read once (`copied.py`).

A recorder may delete old segments meanwhile.  One that is open is read to its end.  One that is deleted
before its turn comes is a loss: it is told to whoever asked for losses, and ends the reading of others.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from natsproxy.capture.format import records
from natsproxy.capture.format.blocks import MAGIC, Kind
from natsproxy.capture.read.copied import Copy, copied, sentence
from natsproxy.capture.read.segment import BlockRef, CaptureFile, Segment
from natsproxy.errors import CaptureError, MissingCapture, TruncatedCapture, UnreadableCapture

Keep = Callable[[BlockRef], bool]
"""A predicate: True for a block that is worth decoding."""
Tell = Callable[[str], None]
"""A function that is called with a sentence."""


class CaptureReader:
    """A capture of one or several segments, in order.

    lost: told of each segment that was deleted before it was read; without it, that is a MissingCapture.
    And told of each one that has not begun, and of copies.  unbegun: those that have not begun, as far as the
    segments have been read.
    """

    def __init__(self, paths: list[Path], lost: Tell | None = None) -> None:
        self.paths = paths
        self.unbegun: list[Path] = []
        self._lost = lost
        self._told = False  # of copies

    @cached_property
    def _copies(self) -> dict[Path, Copy]:
        return copied(self.paths)

    @property
    def copies(self) -> str | None:
        """The sentence that tells of files which hold the same segment; None where there are none."""
        return sentence([(path, copy.of) for path, copy in self._copies.items()]) if self._copies else None

    def files(self) -> Iterator[CaptureFile]:
        """Yield the segments, each open until the next; of a file without blocks of its own, nothing."""
        if self._lost is not None and not self._told and (text := self.copies) is not None:
            self._told = True
            self._lost(text)
        for path in self.paths:
            copy = self._copies.get(path)
            if copy is not None and copy.whole:
                continue
            try:
                file = CaptureFile(path)
            except MissingCapture as error:
                if self._lost is None:
                    raise
                self._lost(str(error))
                continue
            except TruncatedCapture:
                self.unbegun.append(path)
                if self._lost is not None:
                    self._lost(f"{path}: it has not begun, so nothing of it is read")
                continue
            with file:
                file.left_out = frozenset() if copy is None else copy.offsets
                yield file

    def segments(self) -> Iterator[Segment]:
        """Yield the header of each segment."""
        for file in self.files():
            yield file.segment

    def blocks(self) -> Iterator[BlockRef]:
        """Yield the records blocks of all segments, headers and summaries only."""
        for file in self.files():
            yield from file.blocks()

    def items(self, keep: Keep | None = None) -> Iterator[tuple[BlockRef, records.Item]]:
        """Yield all items with their block, block by block; `keep` selects the blocks."""
        for file in self.files():
            for ref in file.blocks():
                if keep is None or keep(ref):
                    for item in file.items(ref):
                        yield ref, item

    def tail(self) -> tuple[Path, int] | None:
        """Return the file that is cut short and the end of its last whole block, None if all is whole."""
        for path in self.paths:
            with CaptureFile(path) as file:
                offset = len(MAGIC)
                closed = False
                while (block := file.block_at(offset)) is not None:
                    closed = block.kind == Kind.INDEX
                    offset = block.end
                if not closed:
                    return path, offset
        return None


def open_capture(path: Path | str, lost: Tell | None = None) -> CaptureReader:
    """Return a reader of a file, a folder of segments, or a glob.

    lost: told of segments that are deleted before they are read, if the reading is to go on; of copies; and
    of the one in which the recording of a single file goes on.  Raises UnreadableCapture if there is none, or
    if its format is newer than this reader, and CaptureError if its first file is no capture.
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
    for path in paths:  # for errors of the first that has begun: they belong here, not into the first loop
        try:
            with CaptureFile(path):
                break
        except TruncatedCapture:
            if path == paths[-1]:
                raise
    if lost is not None and paths == [where] and (other := _continuation(where)) is not None:
        lost(f"{where}: the recording goes on in {other.name}, which is not read")
    return CaptureReader(paths, lost)


def _continuation(path: Path) -> Path | None:
    """Return the file `x-1.ncap` in which the recording of `x.ncap` goes on; others may be of later runs."""
    if _recorder(path) != path.stem:
        return None  # one segment was chosen out of many
    recorder = None
    for other in segment_order(path.parent.glob(f"{glob.escape(path.stem)}-*.ncap")):
        with suppress(CaptureError), CaptureFile(other) as found:
            if recorder is None:
                with CaptureFile(path) as first:
                    recorder = first.segment.recorder
            if found.segment.recorder == recorder:
                return other
    return None


def last_moment(reader: CaptureReader) -> int | None:
    """Return the wall clock (Unix ns) of the last item of a capture, None for an empty one.

    Only the last segment of each recorder is looked at.
    """
    last = {_recorder(path): path for path in reader.paths}
    moments = [
        ref.summary.wall0 + ref.summary.t_last
        for file in CaptureReader(list(last.values()), lambda _: None).files()
        for ref in file.indexed() or file.blocks()
        if ref.summary.items
    ]
    return max(moments, default=None)


def _recorder(path: Path) -> str:
    """Return the part of the name of a segment that is its recorder's."""
    name, _, number = path.stem.rpartition("-")
    return name if number.isdigit() else path.stem


def segment_order(paths: Iterator[Path]) -> list[Path]:
    """Return paths by recorder and segment number."""

    def key(path: Path) -> tuple[str, int]:
        name, _, number = path.stem.rpartition("-")  # by number: segment 10 comes behind segment 9
        return (name, int(number)) if number.isdigit() else (path.stem, 0)

    return sorted(paths, key=key)


class Follower:
    """A growing capture: each `poll` yields the new items, across rotation.  The caller does the waiting.

    A file goes on in the next of its recorder, `x-1.ncap` behind `x.ncap`.  lost: told of segments that were
    deleted before they were read.
    """

    def __init__(self, path: Path | str, lost: Tell) -> None:
        self._path = Path(path)
        self._lost = lost
        self._offsets: dict[Path, int] = {}  # of the segments that may grow
        self._over: set[Path] = set()
        self._next: dict[bytes, int] = {}  # the number of the next segment of each recorder

    def pass_over(self, before: int) -> None:
        """Leave out the segments that nobody has written since a time (Unix ns).

        Not the last one of each recorder: it may grow, whatever the clocks say.
        """
        paths = self._paths()
        last = {_recorder(path): path for path in paths}
        for path in paths:
            with suppress(OSError):  # it is gone
                if path != last[_recorder(path)] and path.stat().st_mtime_ns < before:
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
        self._over.intersection_update(paths)
        for path in paths:
            if path not in self._over:
                yield from self._new_blocks(path)

    def _paths(self) -> list[Path]:
        if self._path.is_dir():
            return segment_order(self._path.glob("*.ncap"))
        if self._path not in self._over:
            return [self._path]
        others = self._path.parent.glob(f"{glob.escape(self._path.stem)}-*.ncap")
        return [self._path, *(path for path in segment_order(others) if self._continues(path))]

    def _continues(self, path: Path) -> bool:
        """Tell whether a file is of a recorder that is followed."""
        if path in self._over or path in self._offsets:
            return True
        try:
            with CaptureFile(path) as file:
                return file.segment.recorder in self._next
        except CaptureError:
            return False

    def _new_blocks(self, path: Path) -> Iterator[tuple[CaptureFile, BlockRef]]:
        try:
            file = CaptureFile(path)
        except TruncatedCapture:
            return  # its first block is not written yet
        except MissingCapture:
            if path == self._path:
                raise
            return  # the next poll tells of it
        with file:
            if path not in self._offsets:
                self._tell_of_missing(file.segment)
            offset = self._offsets.setdefault(path, len(MAGIC))
            for ref in file.blocks(offset):
                yield file, ref
                self._offsets[path] = ref.block.end  # after its items: an error lets them come again
            following = file.block_at(self._offsets[path])
            if following is not None and following.kind == Kind.INDEX:
                del self._offsets[path]
                self._over.add(path)

    def _tell_of_missing(self, segment: Segment) -> None:
        """Tell of the segments between the last one of a recorder and this one."""
        expected = self._next.get(segment.recorder, segment.number)
        if segment.number > expected:
            missing = f"segments {expected} to {segment.number - 1} of recorder {segment.recorder.hex()}"
            self._lost(f"{segment.path}: {missing} were deleted before they were read")
        self._next[segment.recorder] = max(expected, segment.number + 1)
