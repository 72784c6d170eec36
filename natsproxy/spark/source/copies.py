"""Segments that several files hold: a copied file, or what `capture recover` made beside its source.

A block is known by its segment (recorder, boot, number) and by its summary, which a copy has too, at whatever
byte it stands there.  So each block counts once: it is read from the file that has most of the segment's
blocks, and where it is damaged there, from the next file that has it.

Damage is told of once as well, and only of a file that has every block that any other file has: what one
file lost and another has is not lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from natsproxy.capture.format.blocks import Summary
from natsproxy.spark.source.partitions import START, Damage, Share, blocks_between
from natsproxy.spark.source.paths import PLAN_BUFFER, SegmentFile, open_segment

_Key = tuple[Summary, int]
"""A block's summary, and the number of equal ones before it: hand-made captures have such blocks."""


def copies(files: Iterable[SegmentFile]) -> list[list[str]]:
    """Return the files of each segment that several files hold."""
    holders = defaultdict(list)
    for file in files:
        holders[file.segment].append(file.name)
    return [names for names in holders.values() if len(names) > 1]


def told(files: Iterable[SegmentFile]) -> str | None:
    """Return the sentence that tells of copies; None where there are none."""
    found = copies(files)
    if not found:
        return None
    first, second, *_ = found[0]
    others = sum(len(names) - 1 for names in found) - 1
    more = f", and {others} more files are copies" if others else ""
    return f"{second} holds the same segment as {first}{more}: each block counts once"


def shares(files: Iterable[SegmentFile]) -> dict[str, Share]:
    """Return the share of each file whose segment other files hold too."""
    return {name: share for names in copies(files) for name, share in _shared(names)}


class _Contents(NamedTuple):
    """The blocks of a file with their offsets, and its damage."""

    blocks: dict[_Key, int]
    damage: list[Damage]


def _contents(name: str) -> _Contents:
    found, equal = _Contents({}, []), Counter[Summary]()
    with open_segment(name, PLAN_BUFFER) as file:
        for block in blocks_between(file, START, None):
            if isinstance(block, Damage):
                found.damage.append(block)
            else:
                found.blocks[block.summary, equal[block.summary]] = block.block.offset
                equal[block.summary] += 1
    return found


def _shared(names: Sequence[str]) -> Iterator[tuple[str, Share]]:
    """Yield the files of one segment with their shares."""
    contents = {name: _contents(name) for name in names}
    ranked = sorted(contents.items(), key=lambda item: -len(item[1].blocks))
    every = {key for found in contents.values() for key in found.blocks}
    waiting, told_of = set(every), set[tuple[int, int]]()
    for place, (name, mine) in enumerate(ranked):
        others = ranked[place + 1 :]
        blocks = {
            offset: tuple((other, its.blocks[key]) for other, its in others if key in its.blocks)
            for key, offset in mine.blocks.items()
            if key in waiting
        }
        complete = mine.blocks.keys() == every
        lost = {one for one in mine.damage if complete and (one.offset, one.end) not in told_of}
        waiting -= mine.blocks.keys()
        told_of |= {(one.offset, one.end) for one in lost}
        yield name, Share(blocks, frozenset(lost))
