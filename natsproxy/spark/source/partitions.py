"""Which task reads what: the blocks of segments as runs of about `partitionBytes`.

A closed segment is planned from its index, in two small reads.  Without one the headers are walked.  Where
the walk meets damage it goes on at the next block whose checksum is right, and says what it passed over.  A
block that is cut short at the end of a file is not there yet; once the segment is over, whole blocks behind
it mean that it was damage too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from natsproxy.capture.format.blocks import FOOTER, MAGIC, Block
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.paths import PLAN_BUFFER, open_segment

START = len(MAGIC)
"""Where the first block of a segment begins."""


class Damage(NamedTuple):
    """Bytes that are no whole block: where they begin and end (file offsets), and what is wrong."""

    offset: int
    end: int
    reason: str


class Found(NamedTuple):
    """A block of any kind; ref: with its summary, where it holds records."""

    block: Block
    ref: BlockRef | None


@dataclass(frozen=True)
class BlockRun(InputPartition):
    """What one task reads: blocks of one segment by the offsets of their headers, and the damage between."""

    name: str
    offsets: tuple[int, ...]
    damage: tuple[Damage, ...] = ()


def walk(file: CaptureFile, offset: int, *, over: bool) -> Iterator[Found | Damage]:
    """Yield all blocks from `offset` on and the damage between them.

    over: nothing more will be written, so that whole blocks behind one that is cut short are found as well.
    """
    last: Block | None = None
    while True:
        found, reason = None, ""
        try:
            block = file.block_at(offset)
            if block is not None:
                found = Found(block, file.ref(block))
            elif not over or file.size() - offset <= FOOTER.size:
                return
        except CaptureError as error:
            reason = str(error)
        if found is not None:
            yield found
            last, offset = found.block, found.block.end
            continue
        if last is not None and not _whole(file, last):
            offset = last.offset  # its length led here, and is not true
        again = file.resume(offset + 1)
        if again is None and not reason:
            return  # cut short at its end, as after a crash: nothing was lost that was ever whole
        yield Damage(offset, again or file.size(), reason or "a block claims to be longer than its file")
        if again is None:
            return
        last, offset = None, again


def _whole(file: CaptureFile, block: Block) -> bool:
    try:
        file.read(block)
    except CaptureError:
        return False
    return True


def runs(name: str, options: Options, start: int = START, end: int | None = None) -> Iterator[BlockRun]:
    """Yield what tasks read of a segment between two offsets; to its last whole block without `end`.

    Raises CaptureError for a file that is no capture, and for damage with mode FAILFAST.
    """
    with open_segment(name, PLAN_BUFFER) as file:
        offsets: list[int] = []
        damage: list[Damage] = []
        size = 0
        for step in _steps(file, start, end):
            if isinstance(step, Damage):
                if options.mode == "FAILFAST":
                    raise CaptureError(step.reason, path=None if name in step.reason else name)
                damage.append(step)
            elif options.query.wants_block(step):
                offsets.append(step.block.offset)
                size += step.block.end - step.block.offset
            if size >= options.partition_bytes:
                yield BlockRun(name, tuple(offsets), tuple(damage))
                offsets, damage, size = [], [], 0
    if offsets or damage:
        yield BlockRun(name, tuple(offsets), tuple(damage))


def _steps(file: CaptureFile, start: int, end: int | None) -> Iterator[BlockRef | Damage]:
    indexed = file.indexed() if end is None else None
    if indexed is not None:
        yield from (ref for ref in indexed if ref.block.offset >= start)
        return
    for step in walk(file, start, over=end is None):
        if end is not None and (step.offset if isinstance(step, Damage) else step.block.offset) >= end:
            return
        if isinstance(step, Damage):
            yield step
        elif step.ref is not None:
            yield step.ref
