"""Comparison of two captures: the recorded conversation and the observed one.

Frames of both directions are compared as a playback compares live frames with recorded ones: values that a
program or a server generates are learned, and polls may come more or less often (`frame_pairs.py`).  The
server's order across subscriptions and its choice of queue members are random; the set of frames is not.
Latency is shown, but is no difference.

Memory is bounded for captures of any size.  Both are read side by side, and frames that agree are dropped;
rows, status texts and latency samples are bounded (`report.py`).  Percentiles come from a sample of 2,048
latencies, and rows beyond 4,096 become one.  A short second reading fetches the first frames that the other
side lacks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.frame_text import changed_lines, frame_text
from natsproxy.replay.conversation.identifier_map import INBOX, IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.conversation.steps import PUBLISHES, Step, events
from natsproxy.replay.diff.compared_conversation import ComparedConversation, ComparedStep
from natsproxy.replay.diff.compared_frame import KINDS, ComparedFrame, compared
from natsproxy.replay.diff.frame_pairs import FramePairs, WaitingFrame
from natsproxy.replay.diff.multiset_diff import LIMIT, MultisetDiff
from natsproxy.replay.diff.partners import partners
from natsproxy.replay.diff.report import OTHER, ROWS, DiffReport, DiffRow, DiffSample
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_SHOWN: Final = 16_384  # characters of a frame that is shown
_SAMPLED: Final = 200
Path2 = tuple[Path | str, Path | str]
First = dict[tuple[int, int, int], int]
"""The place of the first frame of a row, a side and a kind that the other side lacks."""


def compare(
    recorded: Path | str,
    observed: Path | str,
    options: MatchOptions = DEFAULT,
    *,
    subjects: tuple[bytes, ...] = (),
    limit: int = LIMIT,
) -> DiffReport:
    """Compare two captures.

    subjects: patterns of subjects to leave out.  limit: unpaired frames beyond which files are used.
    Raises CaptureError if one cannot be read.
    """
    paths = (recorded, observed)
    table, conversations = _Table(), [ComparedConversation(path, options, subjects) for path in paths]
    matcher = Matcher(IdentifierMap(), options, conversations[0].asked)
    with MultisetDiff(limit) as multisets:
        pairs = FramePairs(matcher, partners(recorded, observed), multisets, limit)
        for side, one in _interleave(*map(iter, conversations)):
            row = table.count(one, side)
            if not one.timed:  # the server's clock sent it: counted and shown, not compared
                pairs.add(one, row, side)
        firsts = _differences(pairs, multisets, table)
    _show_first(table.rows, firsts, paths, matcher)
    return DiffReport(
        sorted(table.rows, key=lambda row: (row.same, row.group)),
        (conversations[0].gaps, conversations[1].gaps),
        [str(one) for one in matcher.identifiers.learned.values()],
        pairs.by_form,
    )


def _differences(pairs: FramePairs, multisets: MultisetDiff, table: _Table) -> First:
    """Count the frames that only one side has in their rows; return where the first of each are."""
    firsts: First = {}

    def note(number: int, side: int, kind: int, place: int, by: int = 1) -> None:
        row = table.rows[number]
        if side:
            row.added += by
        else:
            row.missing += by
        at = (number, side, kind)
        firsts[at] = min(place, firsts.get(at, place))

    for side, waiting in _unexcused(list(pairs.left()), pairs):
        note(waiting.place.row, side, KINDS.index(waiting.place.kind), waiting.one.step.seq)
    for surplus in multisets.surplus() if pairs.by_form else ():
        number, kind = divmod(surplus.key, len(KINDS))
        note(number, 0 if surplus.by > 0 else 1, kind, surplus.place, abs(surplus.by))
    return firsts


def _unexcused(left: list[tuple[int, WaitingFrame]], pairs: FramePairs) -> Iterator[tuple[int, WaitingFrame]]:
    """Yield the frames that only one side has, except polls that it sent more often, and their answers."""
    repeated: Counter[tuple[int, str]] = Counter()
    ends = {(side, one.place) for side, one in left if one.one.compared.ends_pull}
    for side, waiting in left:
        one = waiting.one
        if not one.request_group and pairs.repeats(waiting, side):
            repeated[side, one.compared.group] += 1
            continue
        if one.request_group and one.use is FrameKind.PULL and one.compared.ends_pull:
            if (1 - side, waiting.place) not in ends:
                continue
        elif one.request_group and one.use is FrameKind.READ and repeated[side, one.request_group] > 0:
            repeated[side, one.request_group] -= 1
            continue
        yield side, waiting


def _interleave(
    ours: Iterator[ComparedStep], theirs: Iterator[ComparedStep]
) -> Iterator[tuple[int, ComparedStep]]:
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
        self.rows: list[DiffRow] = []
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
        self.rows.append(DiffRow(group))
        return number

    def count(self, one: ComparedStep, side: int) -> int:
        """Count a frame in its row; return the row's number."""
        found = one.compared
        number = self._number(one.group)
        tally = self.rows[number].side(side)
        op = one.step.frame.op
        tally.errors += found.failed
        if op == Op.SUB:
            tally.subscribed += 1
        elif op in PUBLISHES:
            tally.sent += 1
        elif op != Op.ERR:
            tally.received += 1
            if found.status or one.timed:
                tally.status(found.status or "redelivered")
            if one.request_group:
                self.rows[self._number(one.request_group)].side(side).replied(one.after, self._random)
        return number


def _show_first(rows: list[DiffRow], firsts: First, paths: Path2, matcher: Matcher) -> None:
    """Give the rows that differ (the first `_SAMPLED`) the first frames of either side that the other lacks.

    Where both sides have one of the kind that the recording misses first, these two are shown.
    """
    numbers = sorted({number for number, _, _ in firsts}, key=lambda number: rows[number].group)[:_SAMPLED]
    pairs: dict[int, tuple[int | None, int | None]] = {}
    for number in numbers:
        ours, theirs = (
            {kind: firsts[number, side, kind] for kind in range(len(KINDS)) if (number, side, kind) in firsts}
            for side in (0, 1)
        )
        kind = min(ours, key=ours.__getitem__) if ours else -1
        pairs[number] = (ours.get(kind), theirs.get(kind, min(theirs.values())) if theirs else None)
    shown = [
        _fetch(path, {places[side] for places in pairs.values()} - {None}, matcher)
        for side, path in enumerate(paths)
    ]
    for number, (mine, other) in pairs.items():
        left, right = shown[0].get(mine), shown[1].get(other)
        field = "presence"
        if left is not None and right is not None:
            field = _field(left.compared, right.compared, matcher)
        rows[number].sample = _sample(field, left.lines if left else [], right.lines if right else [])


def _sample(field: str, ours: list[str], theirs: list[str]) -> DiffSample:
    return DiffSample(field, "\n".join(ours), "\n".join(theirs), tuple(changed_lines(ours, theirs)))


class _Shown(NamedTuple):
    """A frame that is shown: as it is compared, and its lines."""

    compared: ComparedFrame
    lines: list[str]


def _fetch(path: Path | str, places: set[int | None], matcher: Matcher) -> dict[int | None, _Shown]:
    found: dict[int | None, _Shown] = {}
    for event in events(path, matcher.options.filters) if places else ():
        if isinstance(event, Step) and event.seq in places:
            one = compared(event.frame, event.direction)
            assert one is not None, "it was compared"
            found[event.seq] = _Shown(one, _lines(event.frame))
            if len(found) == len(places):
                break
    return found


def _field(ours: ComparedFrame, theirs: ComparedFrame, matcher: Matcher) -> str:
    """Return the place in which two frames of one row differ: "subject", "body /config/..."."""
    if ours.kind != theirs.kind:
        return "kind"
    if ours.status != theirs.status:
        return "status"
    found = matcher.differs(ours.frame, theirs.frame, LearnedPairs())
    if found is not None:  # another client's inbox says less than any other difference
        found = matcher.differs(_without_inboxes(ours), _without_inboxes(theirs), LearnedPairs()) or found
    if found is None:  # the other one has its like elsewhere
        return "number" if ours.sequences == theirs.sequences else "sequence"
    return f"body {found.place}" if found.place.startswith("/") else found.place


def _without_inboxes(one: ComparedFrame) -> Frame:
    frame = one.frame
    if frame.reply.startswith(INBOX):
        frame = frame._replace(reply=INBOX)
    return frame._replace(subject=INBOX) if frame.subject.startswith(INBOX) else frame


def _lines(frame: Frame) -> list[str]:
    """Return the lines of a frame, cut to the memory for one."""
    lines, size = frame_text(frame), 0
    for number, line in enumerate(lines):
        size += len(line)
        if size > _SHOWN:
            return [*lines[:number], line[:_SHOWN], f"  … {frame.wire_size} bytes"]
    return lines
