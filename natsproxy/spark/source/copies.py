"""Segments that several files hold: a copied file, or what `capture recover` made beside its source.

A block is known by its segment (recorder, boot, number) and by its summary, which a copy has too, at whatever
byte it stands there.  So each block counts once: it is read from the file that has most of the segment's
blocks, and where it is damaged there, from the next file that has it.

Damage is told of once as well, and only of a file that has every block that any other file has: what one
file lost and another has is not lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from natsproxy.capture.read.copied import keyed, sentence
from natsproxy.spark.source.partitions import Share
from natsproxy.spark.source.survey import SegmentFile


def copies(files: Iterable[SegmentFile]) -> list[list[SegmentFile]]:
    """Return the files of each segment that several files hold."""
    holders = defaultdict(list)
    for file in files:
        holders[file.segment].append(file)
    return [holding for holding in holders.values() if len(holding) > 1]


def told(files: Iterable[SegmentFile]) -> str | None:
    """Return the sentence that tells of copies; None where there are none."""
    found = copies(files)
    if not found:
        return None
    return sentence([(other.name, first.name) for first, *others in found for other in others])


def shares(files: Iterable[SegmentFile]) -> dict[str, Share]:
    """Return the share of each file whose segment other files hold too."""
    return {name: share for holding in copies(files) for name, share in _shared(holding)}


def _shared(files: Sequence[SegmentFile]) -> Iterator[tuple[str, Share]]:
    """Yield the files of one segment with their shares."""
    blocks_of = ((file, keyed((block.identity, block.offset) for block in file.blocks)) for file in files)
    ranked = sorted(blocks_of, key=lambda pair: -len(pair[1]))
    every = {key for _, offsets in ranked for key in offsets}
    waiting, told_of = set(every), set[tuple[int, int]]()
    for place, (file, mine) in enumerate(ranked):
        others = ranked[place + 1 :]
        blocks = {
            offset: tuple((other.name, its[key]) for other, its in others if key in its)
            for key, offset in mine.items()
            if key in waiting
        }
        complete = mine.keys() == every
        lost = {one for one in file.damage if complete and (one.offset, one.end) not in told_of}
        waiting -= mine.keys()
        told_of |= {(one.offset, one.end) for one in lost}
        yield file.name, Share(blocks, frozenset(lost))
