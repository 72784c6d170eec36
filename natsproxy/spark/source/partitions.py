"""Partitions of a read: neighbouring blocks, about `partitionBytes` together, of one segment or of many.

A recorder that rotates by the minute leaves thousands of small files.  Their blocks share partitions, so that
tasks, and the files that they write, are fewer.  Opening a file costs as much as reading some bytes, which
are added to its size here.

Several files may hold one segment: a copied file, or what `capture recover` made beside its source.  A block
is identified by its segment (recorder, boot, number) and by its summary, which a copy has too, at any offset.
So each block counts once: it is read from the file that has most of the segment's blocks, and if it is
damaged there, from the next file that has it.  Damage is reported once as well, and only for a file that has
every block that any other file has: a block that another file has is not lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from natsproxy.capture.read.copied import keyed, sentence
from natsproxy.errors import CaptureError
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.survey import SegmentFile
from natsproxy.spark.source.walk import Damage

OPEN_BYTES: Final = 256 << 10
"""The bytes that take about as long to read as a file on an object store takes to open."""

BlockPlace = tuple[str, int]
"""A block's file, and the offset of its header there."""


class SegmentShare(NamedTuple):
    """The part of a file that is read, where other files hold the same segment.

    blocks: the offsets of the blocks that are read from it, with the places of their copies.  damage: what is
    reported of the file.
    """

    blocks: dict[int, tuple[BlockPlace, ...]]
    damage: frozenset[Damage]


class BlockRun(NamedTuple):
    """The blocks that a task reads from one file: the offsets of their headers, and the damage between them.

    segment: its recorder, boot and number.  wall: its start (Unix ns).  copies: the places of the same blocks
    in other files, by their offsets in this one.
    """

    name: str
    segment: tuple[str, str, int]
    wall: int
    offsets: tuple[int, ...]
    damage: tuple[Damage, ...]
    copies: dict[int, tuple[BlockPlace, ...]]


@dataclass(frozen=True)
class BlockPartition(InputPartition):
    """The blocks of one task, file by file; size: their bytes."""

    runs: tuple[BlockRun, ...]
    size: int


def pack(
    files: Iterable[SegmentFile], options: Options, shares: Mapping[str, SegmentShare] = MappingProxyType({})
) -> Iterator[BlockPartition]:
    """Yield the partitions of files, in order.

    shares: the part to read of files whose segment other files hold too.  Raises CaptureError for damage
    with mode FAILFAST.
    """
    runs: list[BlockRun] = []
    size = cost = 0
    for file in files:
        share = shares.get(file.name)
        copies = {} if share is None else share.blocks
        damage, offsets = _told(file, share, options), list[int]()
        for block in file.blocks:
            if share is not None and block.offset not in copies:
                continue
            cost += block.end - block.offset + (0 if offsets else OPEN_BYTES)
            size += block.end - block.offset
            offsets.append(block.offset)
            if cost >= options.partition_bytes:
                yield BlockPartition((*runs, _run(file, offsets, (), copies)), size)
                runs, offsets, size, cost = [], [], 0, 0
        if offsets or damage:
            runs.append(_run(file, offsets, damage, copies))
    if runs:
        yield BlockPartition(tuple(runs), size)


def _told(file: SegmentFile, share: SegmentShare | None, options: Options) -> tuple[Damage, ...]:
    """Return the damage of a file that becomes rows."""
    damage = file.damage if share is None else tuple(one for one in file.damage if one in share.damage)
    if damage and options.mode == "FAILFAST":
        reason = damage[0].reason
        raise CaptureError(reason, path=None if file.name in reason else file.name)
    return damage


def _run(
    file: SegmentFile,
    offsets: list[int],
    damage: tuple[Damage, ...],
    copies: dict[int, tuple[BlockPlace, ...]],
) -> BlockRun:
    its_copies = {at: copies[at] for at in offsets if copies.get(at)}
    return BlockRun(file.name, file.segment, file.wall, tuple(offsets), damage, its_copies)


def copies(files: Iterable[SegmentFile]) -> list[list[SegmentFile]]:
    """Return the files of each segment that several files hold."""
    holders = defaultdict(list)
    for file in files:
        holders[file.segment].append(file)
    return [holding for holding in holders.values() if len(holding) > 1]


def describe_copies(files: Iterable[SegmentFile]) -> str | None:
    """Return a sentence about the copies among the files; None where there are none."""
    found = copies(files)
    if not found:
        return None
    return sentence([(other.name, first.name) for first, *others in found for other in others])


def shares(files: Iterable[SegmentFile]) -> dict[str, SegmentShare]:
    """Return the share of each file whose segment other files hold too."""
    return {name: share for holding in copies(files) for name, share in _shared(holding)}


def _shared(files: Sequence[SegmentFile]) -> Iterator[tuple[str, SegmentShare]]:
    """Yield the files of one segment with their shares."""
    blocks_of = ((file, keyed((block.identity, block.offset) for block in file.blocks)) for file in files)
    ranked = sorted(blocks_of, key=lambda pair: -len(pair[1]))
    every = {key for _, offsets in ranked for key in offsets}
    waiting, reported = set(every), set[tuple[int, int]]()
    for place, (file, mine) in enumerate(ranked):
        others = ranked[place + 1 :]
        blocks = {
            offset: tuple((other.name, its[key]) for other, its in others if key in its)
            for key, offset in mine.items()
            if key in waiting
        }
        complete = mine.keys() == every
        lost = {one for one in file.damage if complete and (one.offset, one.end) not in reported}
        waiting -= mine.keys()
        reported |= {(one.offset, one.end) for one in lost}
        yield file.name, SegmentShare(blocks, frozenset(lost))
