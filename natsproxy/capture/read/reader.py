"""Reading of captures: a file, a folder of segments or a glob, also while they grow.

`open_capture` finds the segments; `CaptureReader.blocks()` walks headers and summaries only, `items()`
decodes the bodies too.  A capture without an index, or one that is still being written, is read to its last
whole block.  Memory follows the size of a block, never that of the file.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

from natsproxy.capture.format import records
from natsproxy.capture.format.blocks import MAGIC, Kind
from natsproxy.capture.read.segment import BlockRef, CaptureFile, Segment
from natsproxy.errors import TruncatedCapture, UnreadableCapture

Keep = Callable[[BlockRef], bool]
"""A predicate: True for a block that is worth decoding."""


class CaptureReader:
    """A capture of one or several segments, in order."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def segments(self) -> Iterator[Segment]:
        """Yield the header of each segment."""
        for path in self.paths:
            with CaptureFile(path) as file:
                yield file.segment

    def blocks(self) -> Iterator[BlockRef]:
        """Yield the records blocks of all segments, headers and summaries only."""
        for path in self.paths:
            with CaptureFile(path) as file:
                yield from file.blocks()

    def items(self, keep: Keep | None = None) -> Iterator[tuple[BlockRef, records.Item]]:
        """Yield all items with their block, block by block; `keep` selects the blocks."""
        for path in self.paths:
            with CaptureFile(path) as file:
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


def open_capture(path: Path | str) -> CaptureReader:
    """Return a reader of a file, a folder of segments, or a glob.

    Raises UnreadableCapture if there is none, or if its format is newer than this reader, and CaptureError
    if its first file is no capture.
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
    reader = CaptureReader(paths)
    with CaptureFile(paths[0]):  # for its errors: they belong here, not into the first loop over items
        pass
    return reader


def segment_order(paths: Iterator[Path]) -> list[Path]:
    """Return paths by recorder and segment number."""

    def key(path: Path) -> tuple[str, int]:
        name, _, number = path.stem.rpartition("-")  # by number: segment 10 comes behind segment 9
        return (name, int(number)) if number.isdigit() else (path.stem, 0)

    return sorted(paths, key=key)


class Follower:
    """A growing capture: each `poll` yields the new items, across rotation.  The caller does the waiting."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._offsets: dict[Path, int] = {}

    def poll(self) -> Iterator[tuple[BlockRef, records.Item]]:
        """Yield the items of the blocks that became whole since the last poll."""
        paths = segment_order(self._path.glob("*.ncap")) if self._path.is_dir() else [self._path]
        for path in paths:
            try:
                file = CaptureFile(path)
            except TruncatedCapture:
                continue  # its first block is not written yet
            with file:
                for ref in file.blocks(self._offsets.get(path, len(MAGIC))):
                    yield from ((ref, item) for item in file.items(ref))
                    self._offsets[path] = ref.block.end  # after its items: an error lets them come again
