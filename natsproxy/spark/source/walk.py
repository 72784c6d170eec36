"""The blocks of one segment, and the damage between them.

A closed segment has an index, which two small reads fetch.  Without one the block headers are walked.  At
damage the walk continues at the next block whose checksum is right, and reports the bytes that it skipped.  A
block that is cut short at the end of a file is still being written; once the segment is complete, whole
blocks after a cut one show that it was damage too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from natsproxy.capture.format.blocks import FOOTER, MAGIC, Block
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError

START = len(MAGIC)
"""The offset of a segment's first block, bytes."""
NOT_READ = "not read: "
"""The beginning of the reason of a gap where bytes could not be read, unlike gaps that a recorder noted."""


class Damage(NamedTuple):
    """Bytes that are not a whole block: the file offsets of their beginning and end, and the reason."""

    offset: int
    end: int
    reason: str


class FoundBlock(NamedTuple):
    """A block of any kind; ref has its summary and is None for a block without records."""

    block: Block
    ref: BlockRef | None


def walk(file: CaptureFile, offset: int, *, over: bool) -> Iterator[FoundBlock | Damage]:
    """Yield all blocks from `offset` on, and the damage between them.

    over: nothing more will be written, so whole blocks are searched for after one that is cut short.
    """
    last: Block | None = None
    while True:
        found, reason = None, ""
        try:
            block = file.block_at(offset)
            if block is not None:
                found = FoundBlock(block, file.ref(block))
            elif not over or file.size() - offset <= FOOTER.size:
                return
        except CaptureError as error:
            reason = str(error)
        if found is not None:
            yield found
            last, offset = found.block, found.block.end
            continue
        if last is not None and not _is_whole(file, last):
            offset = last.offset  # the length of the last block led here, and that length is wrong
        resumed = file.resume(offset + 1)
        if resumed is None and not reason:
            return  # cut short at its end, as after a crash: no whole block was lost
        yield Damage(offset, resumed or file.size(), reason or "a block claims to be longer than its file")
        if resumed is None:
            return
        last, offset = None, resumed


def _is_whole(file: CaptureFile, block: Block) -> bool:
    try:
        file.read(block)
    except CaptureError:
        return False
    return True


def blocks_between(file: CaptureFile, start: int, end: int | None) -> Iterator[BlockRef | Damage]:
    """Yield the records blocks and the damage between two offsets; without `end`, to the last whole block."""
    # With an `end`, the segment was still growing when a stream planned its batch.
    indexed = file.indexed() if end is None else None
    if indexed is not None:
        yield from (ref for ref in indexed if ref.block.offset >= start)
        return
    for found in walk(file, start, over=end is None):
        if end is not None and (found.offset if isinstance(found, Damage) else found.block.offset) >= end:
            return
        if isinstance(found, Damage):
            yield found
        elif found.ref is not None:
            yield found.ref
