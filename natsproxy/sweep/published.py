"""The messages that two runs of a program published, in pairs.

Two publishes are a pair where the matcher of the playback says that they agree, as in `capture diff`: values
that a program or a server makes up are learned, one for one.  Replies do not count, since each request has an
inbox of its own; nor does the connection, since a client that comes back has another one.

The baselines say what can be compared.  What differs between two of them, a member of JSON or a header, is
left out; where a payload differs that is neither, the number of messages is compared; where that differs too,
nothing is.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from natsproxy.protocol.places import parse_pointer
from natsproxy.replay.conversation.difference import Difference
from natsproxy.replay.conversation.exchanges import shape_of
from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.diff.compared_frame import group_of
from natsproxy.sweep.traffic import Arrived, group
from natsproxy.wire.frames import Frame

_ALIKE: Final = 256
"""Publishes of one form that are looked at for a pair."""
_OTHERS: Final = 64
_DIFFERENCES: Final = 100
"""Differences between two baselines that are learned; beyond them only numbers are compared."""


@dataclass(slots=True)
class Comparable:
    """The parts of publishes that can be compared.

    options: of the matcher.  by_number: subjects (rows of `capture diff`) of which only the number counts.
    left_out: subjects that are not compared.  said: a sentence for each thing that is left out.
    """

    options: MatchOptions = DEFAULT
    by_number: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Pairs:
    """The pairs of two runs' publishes.

    partner: the number of a first run's publish, by the number of the second run's.  missing: the first
    run's that are left.  extra: the second run's that are left, and the number of the second run's that each
    repeats; None for one that repeats none.
    """

    partner: dict[int, int] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    extra: dict[int, int | None] = field(default_factory=dict)


def learn(runs: Sequence[Sequence[Arrived]]) -> Comparable:
    """Return what can be compared, from the publishes of several clean runs."""
    found = Comparable()
    for other in runs[1:]:
        for _ in range(_DIFFERENCES):
            if not _learn_one(runs[0], other, found):
                break
        else:
            for name in sorted(_unequal(runs[0], other, found)):
                _only_number(found, name)
    return found


def _learn_one(ours: Sequence[Arrived], theirs: Sequence[Arrived], found: Comparable) -> bool:
    """Learn from the first row that differs; tell whether there was one."""
    for name, (missing, extra) in _unequal(ours, theirs, found).items():
        if len(missing) != len(extra):
            found.left_out.add(name)
            counts = [sum(group(one) == name for one in run) for run in (ours, theirs)]
            found.said.append(
                f"{name} is not compared: two clean runs published {counts[0]} and {counts[1]} messages"
            )
            return True
        difference = _difference(ours[missing[0]].frame, theirs[extra[0]].frame, found.options)
        if difference is None or not _ignore(found, ours[missing[0]].frame.subject, difference):
            _only_number(found, name)
        return True
    return False


def _only_number(found: Comparable, name: str) -> None:
    found.by_number.add(name)
    found.said.append(f"of {name} only the number is compared: two clean runs published other payloads")


def _unequal(
    ours: Sequence[Arrived], theirs: Sequence[Arrived], found: Comparable
) -> dict[str, tuple[list[int], list[int]]]:
    """Return the publishes without a partner of both sides, by row."""
    pairs = pair(ours, theirs, found)
    rows: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number in pairs.missing:
        rows[group(ours[number])][0].append(number)
    for number in pairs.extra:
        rows[group(theirs[number])][1].append(number)
    return dict(rows)


def _difference(ours: Frame, theirs: Frame, options: MatchOptions) -> Difference | None:
    matcher = Matcher(IdentifierMap(), options)
    return matcher.differs(_bare(ours), _bare(theirs), LearnedPairs())


def _ignore(found: Comparable, subject: bytes, difference: Difference) -> bool:
    """Leave the place of a difference out; tell whether that can be done."""
    options, place = found.options, difference.place
    if place.startswith("/"):
        try:
            pointer = parse_pointer(f"{subject.decode()} {place}")
        except ValueError:
            return False
        if pointer in options.ignore_json:
            return False
        found.options = replace(options, ignore_json=(*options.ignore_json, pointer))
    elif place.startswith("header "):
        name = place.removeprefix("header ")
        if name in options.ignore_headers:
            return False
        found.options = replace(options, ignore_headers=(*options.ignore_headers, name))
    else:
        return False
    found.said.append(f"{place} of {group_of(subject)} is not compared: it differs between two clean runs")
    return True


def pair(ours: Sequence[Arrived], theirs: Sequence[Arrived], rules: Comparable) -> Pairs:
    """Pair the publishes of two runs: first those that are equal, then those that agree.

    A publish that went on to the server finds its partner before one that did not.
    """
    found = Pairs()
    left = {n: one for n, one in enumerate(ours) if group(one) not in rules.left_out}
    open_ = {n: one for n, one in enumerate(theirs) if group(one) not in rules.left_out}
    for turn in (_equal, _agreeing, _by_number):
        for mine, its in turn(left, open_, rules):
            found.partner[its] = mine
            del left[mine], open_[its]
    found.missing = sorted(left)
    found.extra = dict(_repeated(open_, found.partner, ours, theirs, rules))
    return found


Open = dict[int, Arrived]


def _equal(left: Open, right: Open, rules: Comparable) -> Iterable[tuple[int, int]]:
    waiting: defaultdict[tuple[bytes, bytes, bytes], deque[int]] = defaultdict(deque)
    for number, one in left.items():
        if group(one) not in rules.by_number:
            waiting[content(one.frame)].append(number)
    found = []
    for number, one in _passed_first(right):
        queue = waiting.get(content(one.frame)) if one.whole else None
        if queue:
            found.append((queue.popleft(), number))
    return found


def _agreeing(left: Open, right: Open, rules: Comparable) -> Iterable[tuple[int, int]]:
    matcher = Matcher(IdentifierMap(), rules.options)
    rows: defaultdict[str, _PublishesOfRow] = defaultdict(_PublishesOfRow)
    for number, one in left.items():
        if (name := group(one)) not in rules.by_number:
            rows[name].add(number, one.frame)
    found = []
    for number, one in _passed_first(right):
        if not one.whole or (name := group(one)) not in rows:
            continue
        best: tuple[int, int, LearnedPairs] | None = None
        for candidate, frame in rows[name].candidates(one.frame):
            lesson = matcher.agree(frame, _bare(one.frame))
            if lesson is None:
                continue
            news = sum(a != b for a, b in lesson.live.items())
            if best is None or news < best[0]:
                best = news, candidate, lesson
            if not news:
                break
        if best is not None:
            matcher.identifiers.learn(best[2])
            rows[name].remove(best[1])
            found.append((best[1], number))
    return found


class _PublishesOfRow:
    """The publishes of a row, by their form."""

    def __init__(self) -> None:
        # Ordered dicts: the first ones of thousands go first, and a plain dict would pass over their places.
        self._by_shape: defaultdict[int, OrderedDict[int, Frame]] = defaultdict(OrderedDict)
        self._shapes: dict[int, int] = {}

    def add(self, number: int, frame: Frame) -> None:
        self._shapes[number] = shape = shape_of(frame)
        self._by_shape[shape][number] = _bare(frame)

    def remove(self, number: int) -> None:
        shape = self._shapes[number]
        del self._by_shape[shape][number]
        if not self._by_shape[shape]:
            del self._by_shape[shape]

    def candidates(self, frame: Frame) -> list[tuple[int, Frame]]:
        """Return those that may agree with a frame, those of its form first."""
        shape = shape_of(frame)
        alike = islice(self._by_shape.get(shape, {}).items(), _ALIKE)
        others = (one for other, frames in self._by_shape.items() if other != shape for one in frames.items())
        return [*alike, *islice(others, _OTHERS)]


def _by_number(left: Open, right: Open, rules: Comparable) -> Iterable[tuple[int, int]]:
    """Pair the messages of which only the number counts, and those that were cut."""
    rows: defaultdict[str, deque[int]] = defaultdict(deque)
    for number, one in left.items():
        rows[group(one)].append(number)
    found = []
    for number, one in _passed_first(right):
        name = group(one)
        if (name in rules.by_number or not one.whole) and rows.get(name):
            found.append((rows[name].popleft(), number))
    return found


def _repeated(
    left: Open, partner: dict[int, int], ours: Sequence[Arrived], theirs: Sequence[Arrived], rules: Comparable
) -> Iterable[tuple[int, int | None]]:
    """Yield the publishes that are left, each with the one of its own run that it repeats."""
    by_content: dict[tuple[bytes, bytes, bytes], int] = {}
    by_row: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(partner):
        by_content.setdefault(content(theirs[number].frame), number)
        by_row[group(theirs[number])].append(number)
    matcher = Matcher(IdentifierMap(), rules.options)
    for number, one in left.items():
        row = by_row[group(one)]
        found = by_content.get(content(one.frame))
        if found is None and group(one) in rules.by_number and row:
            found = row[-1]
        if found is None:
            frame = _bare(one.frame)
            found = next(
                (n for n in row[:_ALIKE] if matcher.agree(_bare(theirs[n].frame), frame) is not None), None
            )
        yield number, found


def _passed_first(publishes: Open) -> Iterable[tuple[int, Arrived]]:
    return sorted(publishes.items(), key=lambda item: (not item[1].passed, item[0]))


def _bare(frame: Frame) -> Frame:
    return frame._replace(reply=b"")


def content(frame: Frame) -> tuple[bytes, bytes, bytes]:
    """Return what two equal publishes have in common: all but their replies."""
    return frame.subject, frame.headers if frame.header_size else b"", frame.body


def out_of_order(pairs: Pairs, ours: Sequence[Arrived], theirs: Sequence[Arrived]) -> dict[int, int]:
    """Return the publishes of the second run that come before one which was ahead of them, with that one.

    Only publishes on one subject and one connection of the second run have an order.
    """
    last: dict[tuple[object, bytes], int] = {}
    found = {}
    for number in sorted(pairs.partner):
        one = theirs[number]
        key = (one.conn, one.frame.subject)
        before = last.get(key)
        if before is not None and pairs.partner[before] > pairs.partner[number]:
            if ours[pairs.partner[before]].conn == ours[pairs.partner[number]].conn:
                found[number] = before
            continue
        last[key] = number
    return found


def counts(publishes: Iterable[Arrived]) -> Counter[str]:
    """Return the number of publishes by row."""
    return Counter(map(group, publishes))
