"""Segments that several files hold: a copied file, or what `capture recover` made beside its source.

A block is identified by its segment (recorder, boot, number) and its summary, which a copy has too, at
whatever offset.  It is read from the file that has most of the segment's blocks, and left out of the others,
so that each block counts once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError

Key = tuple[int, int]
"""A block's identity, and the number of equal ones before it, which hand-made captures have."""


class Copy(NamedTuple):
    """A file with blocks of another one: that file, their offsets here, and whether it has no others."""

    of: Path
    offsets: frozenset[int]
    whole: bool


def keyed(blocks: Iterable[tuple[int, int]]) -> dict[Key, int]:
    """Return the offsets of a file's blocks; blocks: the identity and the offset of each."""
    found, equal = dict[Key, int](), Counter[int]()
    for identity, offset in blocks:
        found[identity, equal[identity]] = offset
        equal[identity] += 1
    return found


def sentence(copies: Sequence[tuple[Path | str, Path | str]]) -> str:
    """Return the warning about copies; copies: each file, and the one whose segment it holds too."""
    (copy, of), *others = copies
    such = f" ({len(copies)} such files)" if others else ""
    return f"{copy} holds the same segment as {of}: each block counts once{such}"


def copied(paths: Sequence[Path]) -> dict[Path, Copy]:
    """Return the files whose blocks, or some of them, are read from another file."""
    holders = defaultdict[tuple[bytes, bytes, int], list[Path]](list)
    for path in paths if len(paths) > 1 else ():
        with suppress(CaptureError), CaptureFile(path) as file:  # reported when it is read
            segment = file.segment
            holders[segment.recorder, segment.boot, segment.number].append(path)
    return {path: copy for files in holders.values() if len(files) > 1 for path, copy in _shared(files)}


def _shared(paths: Sequence[Path]) -> Iterable[tuple[Path, Copy]]:
    """Yield those files of one segment that hold blocks of another one of them."""
    ranked = sorted(((path, _offsets(path)) for path in paths), key=lambda pair: -len(pair[1]))
    first, seen = ranked[0][0], set[Key]()
    for path, offsets in ranked:
        if found := frozenset(at for key, at in offsets.items() if key in seen):
            yield path, Copy(first, found, len(found) == len(offsets))
        seen |= offsets.keys()


def _offsets(path: Path) -> dict[Key, int]:
    """Return the offsets of the blocks of a file, up to damage."""
    found = list[tuple[int, int]]()
    with suppress(CaptureError), CaptureFile(path) as file:
        for ref in file.indexed() or file.blocks():
            found.append((hash(ref.summary), ref.block.offset))
    return keyed(found)
