"""A capture as a survey found it, in the order of its recording: for checks, which need a whole history.

Its segments are read where `natscap` reads them: local files or objects.  Bytes that cannot be read, of a
damaged block or of a segment that was deleted, are a gap in the history, so that checks say what they cannot
say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.format.records import GapRecord, Item
from natsproxy.capture.read.reader import CaptureReader, Keep
from natsproxy.capture.read.runs import CaptureRun
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError
from natsproxy.spark.source.partitions import BlockPlace, shares
from natsproxy.spark.source.paths import open_segment
from natsproxy.spark.source.survey import SegmentFile


class SurveyedCapture(NamedTuple):
    """A capture: its place as given, and its segment files."""

    place: str
    files: tuple[SegmentFile, ...]


class RecordingReader(CaptureReader):
    """A reader of a surveyed capture.

    began: the wall clock (Unix ns) of its first item, 0 before that was read.
    """

    def __init__(self, files: Sequence[SegmentFile]) -> None:
        self._files = {Path(file.name): file for file in files}
        self._shares = shares(files)
        self.began = 0
        super().__init__(list(self._files))

    @cached_property
    def runs(self) -> list[CaptureRun]:
        """The runs, by time."""
        segments = defaultdict[str, list[SegmentFile]](list)
        for file in self._files.values():
            segments[file.segment[0]].append(file)
        for of_run in segments.values():
            of_run.sort(key=lambda file: file.segment[2])
        begun = [(_start(of_run[0]), recorder, of_run) for recorder, of_run in segments.items()]
        return [
            CaptureRun(number, start, tuple(Path(file.name) for file in of_run))
            for number, (start, _, of_run) in enumerate(sorted(begun, key=lambda run: run[:2]), 1)
        ]

    @cached_property
    def recorders(self) -> Mapping[int, str]:
        """The recorders, by the numbers of their runs."""
        return {run.number: self._files[run.paths[0]].segment[0] for run in self.runs}

    def tail(self) -> tuple[Path, int] | None:
        """Return a file that its recorder has not closed, and its size; None if there is none."""
        return next(((path, file.size) for path, file in self._files.items() if not file.closed), None)

    def items(self, keep: Keep | None = None) -> Iterator[tuple[BlockRef, Item]]:
        """Yield all items with their block, by time."""
        for ref, item in super().items(keep):
            self.began = self.began or ref.wall(getattr(item, "t", 0))
            yield ref, item

    def items_of(self, run: CaptureRun, keep: Keep | None = None) -> Iterator[tuple[BlockRef, Item]]:
        """Yield the items of a run, with a gap behind bytes that could not be read."""
        last, lost = None, False
        for found in self._blocks(run):
            if found is None:
                lost = True
                continue
            last, items = found
            if lost:
                yield last, GapRecord(None, last.summary.mono0 + last.summary.t_first, {})
                lost = False
            yield from ((last, item) for item in items)
        if lost and last is not None:
            yield last, GapRecord(None, last.summary.mono0 + last.summary.t_last, {})

    def _blocks(self, run: CaptureRun) -> Iterator[tuple[BlockRef, list[Item]] | None]:
        """Yield the blocks of a run, each with its items; None for bytes that cannot be read."""
        for path in run.paths:
            file = self._files[path]
            share = self._shares.get(file.name)
            copies = {block.offset: () for block in file.blocks} if share is None else share.blocks
            damage = file.damage if share is None else share.damage
            places = sorted([*copies, *(one.offset for one in damage)])
            try:
                opened = _opened(file.name, run.number)
            except CaptureError:
                yield from (_from_copies(copies.get(offset, ()), run.number) for offset in places)
                continue
            with opened:
                for offset in places:
                    block = _block(opened, offset) if offset in copies else None
                    yield block or _from_copies(copies.get(offset, ()), run.number)


def _start(file: SegmentFile) -> int:
    """Return the time of the first item of a segment."""
    with suppress(CaptureError), open_segment(file.name) as opened:  # reported when the block is read
        for block in file.blocks:
            summary = opened.records_at(block.offset).summary
            return summary.wall0 + summary.t_first
    return file.wall


def _opened(name: str, run: int) -> CaptureFile:
    file = open_segment(name)
    file.segment = replace(file.segment, run=run)
    return file


def _block(file: CaptureFile, offset: int) -> tuple[BlockRef, list[Item]] | None:
    """Return a block with its items, None if it is damaged."""
    with suppress(CaptureError):
        ref = file.records_at(offset)
        return ref, list(file.items(ref))
    return None


def _from_copies(copies: Sequence[BlockPlace], run: int) -> tuple[BlockRef, list[Item]] | None:
    """Return a block from the first file that has it intact, None if there is none."""
    for name, offset in copies:
        with suppress(CaptureError), _opened(name, run) as file:
            found = _block(file, offset)
            if found is not None:
                return found
    return None
