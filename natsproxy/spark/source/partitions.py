"""Partitions of a read: neighbouring blocks of one segment, about `partitionBytes` together.

A closed segment is planned from its index, in two small reads.  Without an index the block headers are
walked.  Where the walk meets damage it goes on at the next block whose checksum is right, and reports the
bytes that it passed over.  A block that is cut short at the end of a file is still being written; once the
segment is over, whole blocks behind a cut one show that it was damage too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from natsproxy.capture.format.blocks import FOOTER, MAGIC, Block
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.paths import PLAN_BUFFER, open_segment

START = len(MAGIC)
"""The offset of a segment's first block, bytes."""


class Damage(NamedTuple):
    """Bytes that are no whole block: the file offsets of their beginning and end, and the reason."""

    offset: int
    end: int
    reason: str


class FoundBlock(NamedTuple):
    """A block of any kind; ref has its summary and is None for a block without records."""

    block: Block
    ref: BlockRef | None


Place = tuple[str, int]
"""A block's file, and the offset of its header there."""


class Share(NamedTuple):
    """The part of a file that counts, where other files hold the same segment (`copies.py`).

    blocks: the offsets of the blocks that are read from it, with the places of their copies.  damage: that is
    told of.
    """

    blocks: dict[int, tuple[Place, ...]]
    damage: frozenset[Damage]


@dataclass(frozen=True)
class BlockPartition(InputPartition):
    """The blocks of one task: a segment, the offsets of the blocks' headers, and the damage between them.

    copies: the places of the same blocks in other files, by their offsets in this one.
    """

    name: str
    offsets: tuple[int, ...]
    damage: tuple[Damage, ...] = ()
    copies: dict[int, tuple[Place, ...]] = field(default_factory=dict)


def walk(file: CaptureFile, offset: int, *, over: bool) -> Iterator[FoundBlock | Damage]:
    """Yield all blocks from `offset` on, and the damage between them.

    over: nothing more will be written, so whole blocks behind one that is cut short are searched for.
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


def block_partitions(
    name: str, options: Options, start: int = START, end: int | None = None, share: Share | None = None
) -> Iterator[BlockPartition]:
    """Yield the partitions of a segment between two offsets; without `end`, to its last whole block.

    share: the part of it that counts; all without.  Raises CaptureError for a file that is no capture, and
    for damage with mode FAILFAST.
    """
    copies = {} if share is None else share.blocks
    with open_segment(name, PLAN_BUFFER) as file:
        offsets: list[int] = []
        damage: list[Damage] = []
        size = 0
        for found in blocks_between(file, start, end):
            if isinstance(found, Damage):
                if share is not None and found not in share.damage:
                    continue
                if options.mode == "FAILFAST":
                    raise CaptureError(found.reason, path=None if name in found.reason else name)
                damage.append(found)
            elif options.query.wants_block(found) and (share is None or found.block.offset in copies):
                offsets.append(found.block.offset)
                size += found.block.end - found.block.offset
            if size >= options.partition_bytes:
                yield _partition(name, offsets, damage, copies)
                offsets, damage, size = [], [], 0
    if offsets or damage:
        yield _partition(name, offsets, damage, copies)


def _partition(
    name: str, offsets: list[int], damage: list[Damage], copies: dict[int, tuple[Place, ...]]
) -> BlockPartition:
    others = {offset: copies[offset] for offset in offsets if copies.get(offset)}
    return BlockPartition(name, tuple(offsets), tuple(damage), others)


def blocks_between(file: CaptureFile, start: int, end: int | None) -> Iterator[BlockRef | Damage]:
    """Yield the records blocks and the damage between two offsets; without `end`, to the last whole block."""
    # An end lies inside a segment that was still growing when a stream planned its batch.
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
