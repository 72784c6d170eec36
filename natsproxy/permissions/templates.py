"""The subjects that one client used, generalised as far as their evidence goes.

Subjects that differ only in variable tokens are one group.  In a group a position becomes `*` once it had
`distinct` values; until then each value has a line of its own.  At the end a word becomes `*` where `words`
lines differ in it alone, and a line goes where another one allows all of it.

The order of the uses does not matter: a position's values are those of the whole group.

What is held is bounded.  From `HELD` lines of a client on, a position that had at least `COUNTED` words
becomes `*` at once, if it is certain that the end would do the same.  Beyond `LINES` lines of all clients
there is no block: the caller is told instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from natsproxy.errors import NatsproxyError
from natsproxy.permissions.marks import Mark, MarkedToken, marked
from natsproxy.permissions.uses import Use, Verb
from natsproxy.protocol.identifiers import is_generated
from natsproxy.protocol.subjects import STAR, has_wildcard, is_subset

DISTINCT: Final = 3
"""Values from which on a number or an id becomes `*`."""
WORDS: Final = 20
"""Values from which on a word becomes `*`."""
COUNTED: Final = 1_000
"""Values of one position that are counted; so many, or more, were seen where this number is given."""

HELD: Final = 2 * COUNTED
"""Lines of a client from which on words are looked at before the end."""
LINES: Final = 200_000
"""Lines of all clients that are held at most."""


class MappedPermission(NamedTuple):
    """A permission as a map has it.  queue: of a subscription, `b""` for none."""

    verb: Verb
    subject: bytes
    queue: bytes = b""

    def __str__(self) -> str:
        """Return the entry of a permission map."""
        return b" ".join(filter(None, (self.subject, self.queue))).decode("utf-8", "surrogateescape")


@dataclass(slots=True)
class Evidence:
    """The uses behind a line.

    first, last: Unix ns.  denied: the uses that the server denied.  values: the distinct tokens at each
    position that is `*`.  flow_control: one of them created a consumer with flow control.
    """

    frames: int = 0
    first: int = 1 << 63
    last: int = 0
    denied: int = 0
    values: dict[int, set[bytes]] = field(default_factory=dict)
    flow_control: bool = False

    def saw(self, t: int) -> None:
        """Count a use."""
        self.frames += 1
        self.first, self.last = min(self.first, t), max(self.last, t)

    def note(self, position: int, values: Iterable[bytes]) -> None:
        """Note values at a position."""
        known = self.values.setdefault(position, set())
        if len(known) < COUNTED:
            known.update(values)

    def join(self, other: Evidence) -> None:
        """Add the uses of another line."""
        self.frames += other.frames
        self.denied += other.denied
        self.flow_control |= other.flow_control
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        for position, values in other.values.items():
            self.note(position, values)

    @property
    def distinct(self) -> tuple[int, ...]:
        """The number of distinct values at each `*`, at most `COUNTED`."""
        return tuple(min(COUNTED, len(self.values[position])) for position in sorted(self.values))


class _Key(NamedTuple):
    """The tokens that the subjects of a group share; None where they vary."""

    verb: Verb
    queue: bytes
    tokens: tuple[MarkedToken | None, ...]


class _SubjectGroup:
    """Subjects that differ only in variable tokens, by these tokens."""

    def __init__(self, distinct: int, width: int) -> None:
        self._distinct = distinct
        self._seen: list[set[bytes] | None] = [set() for _ in range(width)]
        self.entries: dict[tuple[bytes, ...], Evidence] = {}

    def add(self, values: list[bytes], positions: list[int], known: Mapping[int, set[bytes]]) -> Evidence:
        """Return the evidence of a subject.

        known: the values at positions of which `values` has a `*`: others became one elsewhere.
        """
        for at, value in enumerate(values):
            seen = self._seen[at]
            if seen is not None:
                seen.update(known[positions[at]] if value == STAR else (value,))
                if len(seen) >= self._distinct:
                    self._seen[at] = None
                    self._star(at, positions[at])
        key = tuple(STAR if self._seen[at] is None else value for at, value in enumerate(values))
        found = self.entries.setdefault(key, Evidence())
        for at, value in enumerate(values):
            if value != STAR and self._seen[at] is None:
                found.note(positions[at], (value,))
        return found

    def _star(self, at: int, position: int) -> None:
        old, self.entries = self.entries, {}
        for key, evidence in old.items():
            if key[at] != STAR:
                evidence.note(position, (key[at],))
            self.entries.setdefault((*key[:at], STAR, *key[at + 1 :]), Evidence()).join(evidence)


@dataclass(slots=True)
class Room:
    """The lines that all clients together may still hold."""

    left: int = field(default_factory=lambda: LINES)


class Templates:
    """The templates of one client.

    distinct, words: the values from which on a variable token, or a word, becomes `*`.  room: shared by all
    clients.  Methods that add raise NatsproxyError where there is none left.
    """

    def __init__(self, distinct: int = DISTINCT, words: int = WORDS, room: Room | None = None) -> None:
        self._distinct, self._words = distinct, words
        self._groups: dict[_Key, _SubjectGroup] = {}
        self._room = room or Room()
        self._held, self._look_at = 0, HELD
        self._folded: set[_Key] = set()

    def add(self, use: Use) -> None:
        """Add a use."""
        tokens = marked(use.subject)
        evidence = self._evidence(use.verb, shared_queue(use.queue), tokens, {})
        if use.denied:
            evidence.denied += 1
            return
        evidence.saw(use.t)
        evidence.flow_control |= use.flow_control
        for at, token in enumerate(tokens):
            if token.mark == Mark.GENERATED:
                evidence.note(at, (token.text,))

    def join(self, verb: Verb, queue: bytes, tokens: Sequence[MarkedToken], more: Evidence) -> None:
        """Add the uses of a template whose generated tokens are `*`; some variable ones may be, too."""
        self._evidence(verb, queue, tokens, more.values).join(more)

    def _evidence(
        self, verb: Verb, queue: bytes, tokens: Sequence[MarkedToken], known: Mapping[int, set[bytes]]
    ) -> Evidence:
        if self._held >= self._look_at or self._room.left <= 0:
            self._make_room()
        values = [token.text for token in tokens if token.mark == Mark.VARIABLE]
        shape = tuple(_shared(token) for token in tokens)
        key = _Key(verb, queue, shape)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _SubjectGroup(self._distinct, len(values))
        before = len(group.entries)
        found = group.add(values, [at for at, token in enumerate(shape) if token is None], known)
        self._hold(len(group.entries) - before)
        return found

    def _hold(self, more: int) -> None:
        self._held += more
        self._room.left -= more

    def _make_room(self) -> None:
        self._fold()
        self._look_at = max(HELD, 2 * self._held)
        if self._room.left < LINES // 100:
            raise NatsproxyError(
                f"the clients used more than {LINES:,} different subjects whose words do not become *: "
                "choose fewer captures, or a smaller --words"
            )

    def _fold(self) -> None:
        """Let words become `*` of which so many were used that `lines` makes them `*` in any case.

        `lines` goes from the last position to the first.  Of the words behind a position, and of the variable
        tokens, each may have become `*` by then or not: `k` of them leave at most `2 ** k` kinds of lines.
        Where there are enough lines, one kind has `words` of them and becomes a line that allows at least
        what is allowed here.
        """
        for at in range(max((len(key.tokens) for key in self._groups), default=0) - 1, 0, -1):
            alike: defaultdict[_Key, list[tuple[_Key, tuple[bytes, ...]]]] = defaultdict(list)
            for key, group in self._groups.items():
                if at < len(key.tokens) and _mark(key, at) == Mark.WORD:
                    for values, evidence in group.entries.items():
                        if evidence.denied < evidence.frames:  # else it is no line of the block so far
                            alike[_wide(key, values, at)].append((key, values))
            for wide, ones in alike.items():
                if len(ones) >= COUNTED:
                    open_ones = max(_open(key, values, at) for key, values in ones)
                    if len(ones) > (self._words - 1) << open_ones:
                        self._join(wide, ones, at)
        self._cover()
        self._hold(sum(len(group.entries) for group in self._groups.values()) - self._held)

    def _join(self, wide: _Key, ones: list[tuple[_Key, tuple[bytes, ...]]], at: int) -> None:
        """Put lines that differ in the word at a position into one."""
        joined = self._line(wide)
        self._folded.add(wide)
        for key, values in ones:
            token, evidence = key.tokens[at], self._take(key, values)
            evidence.note(at, () if token is None else (token.text,))
            joined.join(evidence)

    def _line(self, key: _Key) -> Evidence:
        """Return the evidence of a line without variable tokens."""
        if key not in self._groups:
            self._groups[key] = _SubjectGroup(self._distinct, 0)
        return self._groups[key].entries.setdefault((), Evidence())

    def _take(self, key: _Key, values: tuple[bytes, ...]) -> Evidence:
        """Take a line out."""
        entries = self._groups[key].entries
        evidence = entries.pop(values)
        if not entries:
            del self._groups[key]
            self._folded.discard(key)
        return evidence

    def _cover(self) -> None:
        """Let uses count at a folded line that allows them, as `_without_covered` does in the end.

        So do denials without a use: that is in the folded line already.
        """
        wide: defaultdict[tuple[Verb, bytes], dict[bytes, _Key]] = defaultdict(dict)
        for key in self._folded:
            wide[key.verb, key.queue][_subject(key, ())] = key
        lines = [(key, values) for key, group in self._groups.items() for values in group.entries]
        for key, values in lines if wide else ():
            own, covers = _subject(key, values), wide[key.verb, key.queue]
            found = [one for one in covers if one != own and is_subset(own, one)]
            if found:
                evidence = self._take(key, values)
                evidence.values.clear()
                self._line(covers[_widest(found)]).join(evidence)

    def lines(self) -> dict[MappedPermission, Evidence]:
        """Return the lines in the order of their subjects."""
        if self._folded:
            self._fold()
        made = [
            (key._replace(tokens=tuple(_filled(key.tokens, values))), evidence)
            for key, group in self._groups.items()
            for values, evidence in group.entries.items()
            if evidence.frames  # else its -ERR alone is in the recording
        ]
        found: dict[MappedPermission, Evidence] = {}
        for key, evidence in self._merged(made):
            subject = b".".join(token.text for token in key.tokens if token is not None)
            found.setdefault(MappedPermission(key.verb, subject, key.queue), Evidence()).join(evidence)
        return dict(sorted(_without_covered(found).items()))

    def _merged(self, lines: list[tuple[_Key, Evidence]]) -> list[tuple[_Key, Evidence]]:
        """Let words become `*`, from the last position to the first."""
        for at in range(max((len(key.tokens) for key, _ in lines), default=0) - 1, 0, -1):
            alike: defaultdict[_Key, list[tuple[_Key, Evidence]]] = defaultdict(list)
            for key, evidence in lines:
                is_word = at < len(key.tokens) and _mark(key, at) == Mark.WORD
                shared = (*key.tokens[:at], None, *key.tokens[at + 1 :]) if is_word else key.tokens
                alike[key._replace(tokens=shared)].append((key, evidence))
            lines = []
            for shared_key, ones in alike.items():
                if len(ones) < self._words or None not in shared_key.tokens:
                    lines += ones
                    continue
                joined = Evidence()
                for key, evidence in ones:
                    token = key.tokens[at]
                    evidence.note(at, () if token is None else (token.text,))
                    joined.join(evidence)
                lines.append((shared_key._replace(tokens=tuple(_filled(shared_key.tokens, (STAR,)))), joined))
        return lines


def shared_queue(queue: bytes) -> bytes:
    """Return the name of a queue group with `*` for its generated parts."""
    return b".".join(STAR if is_generated(part) else part for part in queue.split(b"."))


def _shared(token: MarkedToken) -> MarkedToken | None:
    if token.mark == Mark.GENERATED:
        return MarkedToken(STAR, Mark.KEPT)
    return None if token.mark == Mark.VARIABLE else token


def _subject(key: _Key, values: tuple[bytes, ...]) -> bytes:
    return b".".join(token.text for token in _filled(key.tokens, values))


def _wide(key: _Key, values: tuple[bytes, ...], at: int) -> _Key:
    """Return the line with `*` at a position."""
    tokens = [*_filled(key.tokens, values)]
    tokens[at] = MarkedToken(STAR, Mark.KEPT)
    return key._replace(tokens=tuple(tokens))


def _open(key: _Key, values: tuple[bytes, ...], at: int) -> int:
    """Return how many tokens of a line may become `*` before the word at a position does."""
    words = sum(_mark(key, place) == Mark.WORD for place in range(at + 1, len(key.tokens)))
    return words + sum(value != STAR for value in values)


def _filled(tokens: tuple[MarkedToken | None, ...], values: Iterable[bytes]) -> Iterator[MarkedToken]:
    given = iter(values)
    return (MarkedToken(next(given), Mark.KEPT) if token is None else token for token in tokens)


def _mark(key: _Key, at: int) -> Mark:
    token = key.tokens[at]
    return Mark.KEPT if token is None else token.mark


def _without_covered(lines: dict[MappedPermission, Evidence]) -> dict[MappedPermission, Evidence]:
    """Leave out each line of which another one, for the same queue, allows all; its uses count there."""
    wide: defaultdict[tuple[Verb, bytes], list[bytes]] = defaultdict(list)
    for place in sorted(lines):
        if has_wildcard(place.subject):
            wide[place.verb, place.queue].append(place.subject)
    kept: dict[MappedPermission, Evidence] = {}
    for place, evidence in lines.items():
        covers = wide[place.verb, place.queue]
        found = [one for one in covers if one != place.subject and is_subset(place.subject, one)]
        home = place._replace(subject=_widest(found)) if found else place
        if home is not place:
            evidence.values.clear()  # they belong to other positions
        kept.setdefault(home, Evidence()).join(evidence)
    return kept


def _widest(patterns: list[bytes]) -> bytes:
    """Return a pattern that no other one covers."""
    return next(
        one for one in patterns if not any(other != one and is_subset(one, other) for other in patterns)
    )
