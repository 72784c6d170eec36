"""The runs of a capture: one per start of a recorder, by time.

A restarted proxy records under a new id, and proxies that record into one folder have different ones.  The
segment headers say to which run each belongs, and its position there; file names and their order do not
count.

Runs nearly always follow each other.  Those of several proxies are concurrent: `by_time` merges them, and
keeps the order within each run.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError

T = TypeVar("T")
_LAST: Final = 1 << 64
"""A time later than any clock."""


class Head(NamedTuple):
    """The part of a segment's header that gives its position.

    number: that of the segment.  start: the wall clock (Unix ns) when it was begun.
    """

    path: Path
    recorder: bytes
    number: int
    start: int


class CaptureRun(NamedTuple):
    """A run: its number, from 1, a time (wall clock, Unix ns) before its items, its segments in order."""

    number: int
    start: int
    paths: tuple[Path, ...]


def head_of(file: CaptureFile) -> Head:
    """Return the head of an open segment."""
    segment = file.segment
    return Head(Path(segment.path), segment.recorder, segment.number, segment.wall)


def heads(paths: Sequence[Path]) -> Iterator[Head]:
    """Yield the heads of those segments that have one."""
    for path in paths:
        with suppress(CaptureError), CaptureFile(path) as file:  # reported when it is read
            yield head_of(file)


def runs_of(paths: Sequence[Path]) -> list[CaptureRun]:
    """Return the runs of segments, the earliest first.

    Segments whose header cannot be read form a run after the others; reading them reports why.
    """
    if len(paths) == 1:
        return [CaptureRun(1, 0, tuple(paths))]
    segments = defaultdict[bytes, list[Head]](list)
    for head in heads(paths):
        segments[head.recorder].append(head)
    for of_run in segments.values():
        of_run.sort(key=attrgetter("number"))  # stable: equal ones stay in the order of the paths
    begun = [(_start(of_run[0]), recorder, of_run) for recorder, of_run in segments.items()]
    runs = [
        CaptureRun(number, start, tuple(head.path for head in of_run))
        for number, (start, _, of_run) in enumerate(sorted(begun), 1)
    ]
    read = {path for run in runs for path in run.paths}
    if rest := tuple(path for path in paths if path not in read):
        runs.append(CaptureRun(len(runs) + 1, _LAST, rest))
    return runs


def _start(first: Head) -> int:
    """Return the time of the first item of a run: after its segment was begun, if the clock was not set."""
    with suppress(CaptureError), CaptureFile(first.path) as file:  # reported when the block is read
        for ref in file.blocks():
            return ref.summary.wall0 + ref.summary.t_first
    return first.start


def by_time(
    runs: Sequence[CaptureRun], read: Callable[[CaptureRun], Iterator[T]], wall: Callable[[T], int]
) -> Iterator[T]:
    """Yield what `read` yields for each run, by the wall clock; the order within a run is kept.

    A run is opened at its start, so runs that follow each other are open one at a time.
    """
    if len(runs) == 1:
        yield from read(runs[0])
        return
    waiting = deque(runs)
    begun: list[tuple[int, int, T, Iterator[T]]] = []  # a heap of the next one of each run
    while waiting or begun:
        while waiting and (not begun or waiting[0].start <= begun[0][0]):
            run = waiting.popleft()
            source = read(run)
            for first in source:
                heapq.heappush(begun, (wall(first), run.number, first, source))
                break
        if not begun:
            continue
        _, number, found, source = begun[0]
        yield found
        for following in source:
            heapq.heapreplace(begun, (wall(following), number, following, source))
            break
        else:
            heapq.heappop(begun)
