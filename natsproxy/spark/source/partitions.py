"""Partitions of a read: neighbouring blocks, about `partitionBytes` together, of one segment or of many.

A recorder that rotates by the minute leaves thousands of small files.  Their blocks share partitions, so that
neither tasks nor the files that tasks write are as many.  To open a file costs as much as to read some bytes
of it, which count for it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from natsproxy.errors import CaptureError
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.survey import SegmentFile
from natsproxy.spark.source.walk import Damage

OPEN_BYTES: Final = 256 << 10
"""The bytes that take as long to read as a file takes to open, about: of an object store."""

Place = tuple[str, int]
"""A block's file, and the offset of its header there."""


class Share(NamedTuple):
    """The part of a file that counts, where other files hold the same segment (`copies.py`).

    blocks: the offsets of the blocks that are read from it, with the places of their copies.  damage: that is
    told of.
    """

    blocks: dict[int, tuple[Place, ...]]
    damage: frozenset[Damage]


class Run(NamedTuple):
    """The blocks that a task reads from one file: the offsets of their headers, and the damage between them.

    segment: its recorder, boot and number.  wall: its begin (Unix ns).  copies: the places of the same blocks
    in other files, by their offsets in this one.
    """

    name: str
    segment: tuple[str, str, int]
    wall: int
    offsets: tuple[int, ...]
    damage: tuple[Damage, ...]
    copies: dict[int, tuple[Place, ...]]


@dataclass(frozen=True)
class BlockPartition(InputPartition):
    """The blocks of one task, file by file; size: their bytes."""

    runs: tuple[Run, ...]
    size: int


def pack(
    files: Iterable[SegmentFile], options: Options, shares: Mapping[str, Share] = MappingProxyType({})
) -> Iterator[BlockPartition]:
    """Yield the partitions of files, in order.

    shares: the part that counts of files whose segment other files hold too.  Raises CaptureError for damage
    with mode FAILFAST.
    """
    runs: list[Run] = []
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


def _told(file: SegmentFile, share: Share | None, options: Options) -> tuple[Damage, ...]:
    """Return the damage of a file that becomes rows."""
    damage = file.damage if share is None else tuple(one for one in file.damage if one in share.damage)
    if damage and options.mode == "FAILFAST":
        reason = damage[0].reason
        raise CaptureError(reason, path=None if file.name in reason else file.name)
    return damage


def _run(
    file: SegmentFile, offsets: list[int], damage: tuple[Damage, ...], copies: dict[int, tuple[Place, ...]]
) -> Run:
    its_copies = {at: copies[at] for at in offsets if copies.get(at)}
    return Run(file.name, file.segment, file.wall, tuple(offsets), damage, its_copies)
