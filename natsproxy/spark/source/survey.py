"""The survey of captures before they are read: each file is opened once, and its contents are noted.

On an object store a small file takes two requests, a larger one three, and many files are read concurrently.
A survey can be saved, for processes that plan reads of the same captures: Spark plans each read in a process
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple

import msgpack

from natsproxy.capture.read.frames import Query
from natsproxy.errors import CaptureError, MissingCapture, TruncatedCapture
from natsproxy.spark.source.object_stores import AT_ONCE, is_url
from natsproxy.spark.source.paths import open_for_planning, segments
from natsproxy.spark.source.walk import START, Damage, blocks_between

_ALL: Final = Query()


class PlacedBlock(NamedTuple):
    """A block of a file: the offsets of its beginning and end, and a number that only its copies share."""

    offset: int
    end: int
    identity: int


class SegmentFile(NamedTuple):
    """A segment file: the segment that it holds, its size, its blocks and damage.

    segment: recorder, boot and number.  wall: its start (Unix ns), or 0.  closed: its recorder has closed it.
    """

    name: str
    segment: tuple[str, str, int]
    wall: int
    size: int
    blocks: tuple[PlacedBlock, ...]
    damage: tuple[Damage, ...]
    closed: bool = True


def survey(
    places: Iterable[str], query: Query = _ALL, looked: Callable[[int, int], None] = lambda done, files: None
) -> list[SegmentFile]:
    """Open every segment of all places once; return those that have a header, each file once.

    query: blocks that it rules out are left out.  looked: called after each file, with the number of files
    done and of all.  Raises CaptureError where there is no file, for a file that is not a capture or of a
    newer version, and without permission.  A segment without a header yet, or that was just deleted, is
    skipped, unless its place has no other.
    """
    named = {place: segments(place) for place in places}
    names = list(dict.fromkeys(name for found in named.values() for name in found))
    with ThreadPoolExecutor(AT_ONCE if any(map(is_url, names)) else 1) as pool:
        seen = dict[str, SegmentFile | CaptureError]()
        for name, file in zip(names, pool.map(partial(_look, query=query), names), strict=True):
            seen[name] = file
            looked(len(seen), len(names))
    for found in named.values():
        passed = [error for name in found if isinstance(error := seen[name], CaptureError)]
        if passed and len(passed) == len(found):
            raise passed[-1]
    return [file for file in seen.values() if isinstance(file, SegmentFile)]


def _look(name: str, query: Query) -> SegmentFile | CaptureError:
    try:
        return contents(name, query)
    except (TruncatedCapture, MissingCapture) as error:
        return error


def contents(name: str, query: Query = _ALL, start: int = START, end: int | None = None) -> SegmentFile:
    """Return the contents of a file between two offsets; without `end`, to its last whole block."""
    blocks, damage = list[PlacedBlock](), list[Damage]()
    with open_for_planning(name) as file:
        header = file.segment
        for found in blocks_between(file, start, end):
            if isinstance(found, Damage):
                damage.append(found)
            elif query.wants_block(found):
                blocks.append(PlacedBlock(found.block.offset, found.block.end, hash(found.summary)))
        segment = header.recorder.hex(), header.boot.hex(), header.number
        closed = file.indexed() is not None
        return SegmentFile(name, segment, header.wall, file.size(), tuple(blocks), tuple(damage), closed)


def unfinished(files: Iterable[SegmentFile]) -> list[str]:
    """Return a clause for each file that its recorder has not closed, as `capture info` says it."""
    return [f"{file.name}: not closed: readable to its last whole block" for file in files if not file.closed]


@contextmanager
def saved(files: Iterable[SegmentFile]) -> Iterator[str]:
    """Yield the path of a file with a survey, which is removed afterwards."""
    with NamedTemporaryFile(prefix="natsproxy-survey-") as file:
        file.write(msgpack.packb(list(files)))
        file.flush()
        yield file.name


def load(path: str) -> list[SegmentFile]:
    """Return the survey that `saved` wrote."""
    rows: list[list[Any]] = msgpack.unpackb(Path(path).read_bytes())
    return [
        SegmentFile(
            name,
            (*segment,),
            wall,
            size,
            tuple(map(PlacedBlock._make, blocks)),
            tuple(map(Damage._make, damage)),
            closed,
        )
        for name, segment, wall, size, blocks, damage, closed in rows
    ]
