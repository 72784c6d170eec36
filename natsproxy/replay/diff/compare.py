"""The comparison of two captures: the recorded conversation and the observed one.

Frames are compared as multisets per group: a subject template, the group of the request for answers, or the
-ERR text.  The server's order across subscriptions and its choice of queue members are random; the set of
frames is not.  Latency is shown, never judged.

Memory does not follow the captures.  Both are read side by side in normalized form, and equal frames cancel
out as they come (`multiset_diff.py`); rows, status texts and latency samples are bounded (`report.py`).
Counts and verdicts are exact; percentiles come from a sample of 2,048 latencies, and rows beyond 4,096 become
one.  A second, short reading fetches the first frames that the other side does not have.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.replay.conversation.frame_text import changed_lines, frame_text
from natsproxy.replay.conversation.steps import PUBLISHES, Step, events
from natsproxy.replay.diff.multiset_diff import LIMIT, MultisetDiff
from natsproxy.replay.diff.normalize import Ignore, NormalizedFrame, difference, normalize
from natsproxy.replay.diff.normalized_conversation import NormalizedConversation, NormalizedStep
from natsproxy.replay.diff.report import OTHER, ROWS, DiffReport, DiffSample, Row
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_SHOWN: Final = 16_384  # characters of a frame that is shown
_SAMPLED: Final = 200
_KINDS: Final = {"SUB": 0, "PUB": 1, "MSG": 2, "-ERR": 3}
_NO_IGNORE: Final = Ignore()
Path2 = tuple[Path | str, Path | str]


def compare(
    recorded: Path | str, observed: Path | str, ignore: Ignore = _NO_IGNORE, *, limit: int = LIMIT
) -> DiffReport:
    """Compare two captures.  limit: open entries beyond which temporary files are used.

    Raises CaptureError where one cannot be read.
    """
    paths = (recorded, observed)
    table, conversations = _Table(), [NormalizedConversation(path, ignore) for path in paths]
    with MultisetDiff(limit) as multisets:
        for side, entry in _interleave(*map(iter, conversations)):
            row = table.count(entry, side)
            if not entry.timed:  # the server's clock sent it: counted and shown, not compared
                key = row * len(_KINDS) + _KINDS[entry.normalized.kind]
                multisets.add(entry.normalized.digest, key, side, entry.step.seq)
        firsts: dict[tuple[int, int, int], int] = {}  # (row, side, kind): the first frame's place
        for surplus in multisets.surplus():
            number, kind = divmod(surplus.key, len(_KINDS))
            side = 0 if surplus.by > 0 else 1
            if side:  # `by` is negative for the observed capture
                table.rows[number].added -= surplus.by
            else:
                table.rows[number].missing += surplus.by
            at = (number, side, kind)
            firsts[at] = min(surplus.place, firsts.get(at, surplus.place))
    _show_first(table.rows, firsts, paths, ignore)
    return DiffReport(
        sorted(table.rows, key=lambda row: (row.same, row.group)),
        (conversations[0].gaps, conversations[1].gaps),
    )


def _interleave(
    ours: Iterator[NormalizedStep], theirs: Iterator[NormalizedStep]
) -> Iterator[tuple[int, NormalizedStep]]:
    """Yield the frames of both sides by turns, with their side; the rest of the longer one at the end."""
    for mine in ours:
        yield 0, mine
        other = next(theirs, None)
        if other is not None:
            yield 1, other
    for other in theirs:
        yield 1, other


class _Table:
    """The rows by number."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._numbers: dict[str, int] = {}
        self._random = random.Random(0)  # noqa: S311 (a sample that is the same every time)

    def _number(self, group: str) -> int:
        number = self._numbers.get(group)
        if number is None:
            if len(self.rows) >= ROWS:
                return self._numbers.get(OTHER) or self._new(OTHER)
            number = self._new(group)
        return number

    def _new(self, group: str) -> int:
        number = self._numbers[group] = len(self.rows)
        self.rows.append(Row(group))
        return number

    def count(self, entry: NormalizedStep, side: int) -> int:
        """Count a frame in its row; return the row's number."""
        step, normalized, request_group, after, timed = entry
        number = self._number(normalized.group)
        tally = self.rows[number].side(side)
        op = step.frame.op
        tally.errors += normalized.failed
        if op == Op.SUB:
            tally.subscribed += 1
        elif op in PUBLISHES:
            tally.sent += 1
        elif op != Op.ERR:
            tally.received += 1
            if normalized.status or timed:
                tally.status(normalized.status or "redelivered")
            if request_group:
                self.rows[self._number(request_group)].side(side).replied(after, self._random)
        return number


def _show_first(
    rows: list[Row], firsts: dict[tuple[int, int, int], int], paths: Path2, ignore: Ignore
) -> None:
    """Give the rows that differ (the first `_SAMPLED`) the first frames of either side that the other lacks.

    Where both sides have one of the kind that the recording misses first, these two are shown.
    """
    numbers = sorted({number for number, _, _ in firsts}, key=lambda number: rows[number].group)[:_SAMPLED]
    pairs: dict[int, tuple[int | None, int | None]] = {}
    for number in numbers:
        ours, theirs = (
            {kind: firsts[number, side, kind] for kind in _KINDS.values() if (number, side, kind) in firsts}
            for side in (0, 1)
        )
        kind = min(ours, key=ours.__getitem__) if ours else -1
        pairs[number] = (ours.get(kind), theirs.get(kind, min(theirs.values())) if theirs else None)
    shown = [
        _fetch(path, {places[side] for places in pairs.values()} - {None}, ignore)
        for side, path in enumerate(paths)
    ]
    for number, (mine, other) in pairs.items():
        left, right = shown[0].get(mine), shown[1].get(other)
        field = "presence" if left is None or right is None else _field(left.normalized, right.normalized)
        rows[number].sample = _sample(field, left.lines if left else [], right.lines if right else [])


def _sample(field: str, ours: list[str], theirs: list[str]) -> DiffSample:
    return DiffSample(field, "\n".join(ours), "\n".join(theirs), tuple(changed_lines(ours, theirs)))


class _Shown(NamedTuple):
    """A frame that is shown: its normalized form, and its lines."""

    normalized: NormalizedFrame
    lines: list[str]


def _fetch(path: Path | str, places: set[int | None], ignore: Ignore) -> dict[int | None, _Shown]:
    found: dict[int | None, _Shown] = {}
    for event in events(path) if places else ():
        if isinstance(event, Step) and event.seq in places:
            normalized = normalize(event.frame, event.direction, ignore)
            assert normalized is not None, "it was compared"
            found[event.seq] = _Shown(normalized, _lines(event.frame))
            if len(found) == len(places):
                break
    return found


def _field(ours: NormalizedFrame, theirs: NormalizedFrame) -> str:
    """Return the field that differs; frames of one kind and row differ in anything but their group."""
    return difference(ours, theirs._replace(group=ours.group) if ours.kind == theirs.kind else theirs)


def _lines(frame: Frame) -> list[str]:
    """Return the lines of a frame, as many as fit into the memory for one."""
    lines, size = frame_text(frame), 0
    for number, line in enumerate(lines):
        size += len(line)
        if size > _SHOWN:
            return [*lines[:number], line[:_SHOWN], f"  … {frame.wire_size} bytes"]
    return lines
