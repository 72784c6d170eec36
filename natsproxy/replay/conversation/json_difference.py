"""The comparison of JSON payloads by value, with the treatment of each place.

Objects agree in any order of their members, numbers by value.  Texts and numbers that look generated are
learned where the options let them be; members whose names are generated (`{"<uuid>": ...}`) are matched in
their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from natsproxy.protocol.places import Path, pointer_text
from natsproxy.replay.conversation.difference import ABSENT, Difference
from natsproxy.replay.conversation.generated_values import SHORTEST_WORD, are_alike, are_times, form_of
from natsproxy.replay.conversation.identifier_map import (
    INBOX,
    IdentifierMap,
    LearnedPairs,
    LearnedValue,
    encoded,
)
from natsproxy.replay.conversation.match_options import MatchOptions, Treatment

_LARGEST: Final = 1 << 20
_NUMBERS: Final = (int, float)
_IDENTIFIER: Final = 10**16  # whole numbers from here on may be identifiers


def parse(body: bytes) -> Any:
    """Return the value of a JSON object or list; ABSENT for any other body, and for a very large one."""
    if body[:1] not in (b"{", b"[") or len(body) > _LARGEST:
        return ABSENT
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return ABSENT


def _is_same_data(ours: Any, theirs: Any) -> bool:
    """Return whether two values are equal and plain, and too short for an identifier."""
    kind = type(ours)
    if kind is not type(theirs) or kind is dict or kind is list:
        return False
    if kind is str:
        return len(ours) < SHORTEST_WORD and bool(ours == theirs)
    return bool(ours == theirs) and not (kind is int and ours >= _IDENTIFIER)


def _are_identifiers(ours: Any, theirs: Any) -> bool:
    """Return whether two values are numbers that may be identifiers."""
    return type(ours) is int and type(theirs) is int and min(ours, theirs) >= _IDENTIFIER


def _is_zero(value: Any) -> bool:
    """Return whether a value is what Go reads where the member is missing: of an object all members are."""
    if isinstance(value, dict):
        return all(map(_is_zero, value.values()))
    return value is None or value is False or value in ("", 0, [])


def counted(
    value: Any, options: MatchOptions, subject: bytes, volatile: frozenset[str], path: Path = ()
) -> Any:
    """Return a JSON value without the members that do not count, and the form of what must be alike."""
    treatment = options.member(subject, path)
    if treatment is Treatment.LIKE:
        return form_of(value)
    if treatment is Treatment.ANY and (isinstance(value, str) or type(value) in _NUMBERS):
        return "<any>"

    def counts(at: str) -> bool:
        return at not in volatile and options.member(subject, (*path, at)) is not Treatment.IGNORED

    def entry(at: str, inner: Any) -> Any:
        return counted(inner, options, subject, volatile, (*path, at))

    if isinstance(value, dict):
        return {at: entry(at, inner) for at, inner in value.items() if counts(at)}
    if isinstance(value, list):
        return [entry(str(at), inner) for at, inner in enumerate(value) if counts(str(at))]
    return value


class JsonComparison:
    """The comparison of two payloads of one subject.

    volatile: names of members that do not count.  defined: NATS defines this payload, so all its identifiers
    are learned, and not for the report.  zero_is_absent: a member that is missing is equal to its zero value:
    the server reads both alike, and libraries differ in what they write.
    """

    def __init__(
        self,
        identifiers: IdentifierMap,
        options: MatchOptions,
        subject: bytes,
        new: LearnedPairs,
        *,
        volatile: frozenset[str] = frozenset(),
        defined: bool = False,
        zero_is_absent: bool = False,
    ) -> None:
        self._identifiers = identifiers
        self._options = options
        self._subject = subject
        self._new = new
        self._volatile = volatile
        self._defined = defined
        self._zero_is_absent = zero_is_absent
        self._special = options.compares_json(subject)

    def differs(self, ours: Any, theirs: Any) -> Difference | None:
        """Return the first difference of the recorded and the live value."""
        try:
            return self._value(ours, theirs, ())
        except RecursionError:  # a hostile nesting
            return Difference("body", "body", ours, theirs, "nested too deeply to compare")

    def _value(self, ours: Any, theirs: Any, path: Path) -> Difference | None:
        if self._special:
            treatment = self._options.member(self._subject, path)
            alike = treatment is Treatment.LIKE and are_alike(ours, theirs)
            if alike or treatment is Treatment.IGNORED:
                return self._ignored(ours, theirs, path, whole=alike)
            if treatment is Treatment.ANY and self._any_text(ours, theirs, path):
                return None
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return self._object(ours, theirs, path)
        if isinstance(ours, list) and isinstance(theirs, list):
            if len(ours) != len(theirs):
                return self._difference(ours, theirs, path)
            names = [str(at) for at in range(len(ours))]
            return self._members(zip(names, ours, theirs, strict=True), path)
        if isinstance(ours, str) and isinstance(theirs, str):
            agree = self._texts(ours, theirs, path)
        elif type(ours) in _NUMBERS and type(theirs) in _NUMBERS:
            agree = self._numbers(ours, theirs, path)
        else:
            agree = type(ours) is type(theirs) and ours == theirs
        return None if agree else self._difference(ours, theirs, path)

    def _object(self, ours: dict[str, Any], theirs: dict[str, Any], path: Path) -> Difference | None:
        common = [name for name in ours if name in theirs and name not in self._volatile]
        members = [(name, ours[name], theirs[name]) for name in common]
        if len(common) < max(len(ours), len(theirs)):
            missing, more = self._only_in(ours, theirs, path), self._only_in(theirs, ours, path)
            pairs = zip(missing, more, strict=False)
            if len(missing) != len(more) or not all(self._texts(a, b, (*path, a)) for a, b in pairs):
                name = (missing or more)[0]
                return self._difference(ours.get(name, ABSENT), theirs.get(name, ABSENT), (*path, name))
            members += [(a, ours[a], theirs[b]) for a, b in zip(missing, more, strict=True)]
        return self._members(members, path)

    def _members(self, members: Iterable[tuple[str, Any, Any]], path: Path) -> Difference | None:
        for name, ours, theirs in members:
            if _is_same_data(ours, theirs) and not self._special:  # nearly always
                continue
            found = self._value(ours, theirs, (*path, name))
            if found is not None:
                return found
        return None

    def _only_in(self, ours: dict[str, Any], theirs: dict[str, Any], path: Path) -> list[str]:
        """Return the names that only one of two objects has, and that count."""
        names = [name for name in ours if name not in theirs and name not in self._volatile]
        if self._zero_is_absent:
            names = [name for name in names if not _is_zero(ours[name])]
        if not self._special:
            return names
        member = self._options.member
        return [name for name in names if member(self._subject, (*path, name)) is not Treatment.IGNORED]

    def ignored(self, ours: Any, theirs: Any) -> Difference | None:
        """Learn from two values that need not agree, so that the live ones come back.

        Returns the first identifier that contradicts what was learned before.
        """
        try:
            return self._ignored(ours, theirs, ())
        except RecursionError:  # a hostile nesting
            return None

    def _ignored(self, ours: Any, theirs: Any, path: Path, *, whole: bool = False) -> Difference | None:
        """Do so.  whole: they are a pair whatever they look like, since a user vouches for their place."""
        if isinstance(ours, dict) and isinstance(theirs, dict):
            inner = [(name, one, theirs[name]) for name, one in ours.items() if name in theirs]
        elif isinstance(ours, list) and isinstance(theirs, list):
            inner = [(str(at), *pair) for at, pair in enumerate(zip(ours, theirs, strict=False))]
        else:
            return self._ignored_leaf(ours, theirs, path, whole=whole)
        for name, one, other in inner:
            found = self._ignored(one, other, (*path, name), whole=whole)
            if found is not None:
                return found
        return None

    def _ignored_leaf(self, ours: Any, theirs: Any, path: Path, *, whole: bool) -> Difference | None:
        if not self._learns(path):
            return None
        place = pointer_text(path)
        identifiers = _are_identifiers(ours, theirs)
        if identifiers or (isinstance(ours, str) and isinstance(theirs, str)):
            a, b = (encoded(str(one)) for one in (ours, theirs))
            if not self._identifiers.unify_ignored(a, b, self._new, place, whole=whole):
                return self._difference(ours, theirs, path)
        elif type(ours) in _NUMBERS and type(theirs) in _NUMBERS:
            self._numbers(ours, theirs, path)
        if whole and ours != theirs and path:
            self._new.learn_member(path[-1], ours, theirs)
            before, now = (encoded(json.dumps(one, ensure_ascii=False)) for one in (ours, theirs))
            self._new.places.append(LearnedValue(place, before, now))
        return None

    def _any_text(self, ours: Any, theirs: Any, path: Path) -> bool:
        """Learn two texts or two numbers that may be any; return False for other values."""
        texts = isinstance(ours, str) and isinstance(theirs, str)
        if not texts and not (type(ours) in _NUMBERS and type(theirs) in _NUMBERS):
            return False
        if self._learns(path):
            before, now = (encoded(one) if texts else repr(one).encode() for one in (ours, theirs))
            self._new.learn_text(before, now, pointer_text(path))
            self._new.learn_member(path[-1] if path else "", ours, theirs)
        return True

    def _texts(self, ours: str, theirs: str, path: Path) -> bool:
        a, b = encoded(ours), encoded(theirs)
        if self._defined or (ours.startswith("_INBOX.") and b.startswith(INBOX)):
            return not self._identifiers.unify_subject(a, b, self._new, reply=True)
        if a == b:
            return self._identifiers.same(a, self._new)
        return self._identifiers.unify(a, b, self._new, pointer_text(path), learn=self._learns(path))

    def _numbers(self, ours: float, theirs: float, path: Path) -> bool:
        if _are_identifiers(ours, theirs) and (ours == theirs or self._learns(path)):
            return self._identifiers.unify(b"%d" % ours, b"%d" % theirs, self._new, pointer_text(path))
        # Not equal to itself: NaN, which Python reads in JSON.
        if ours == theirs or (ours != ours and theirs != theirs):
            return True
        if not self._learns(path):
            return False
        a, b = repr(ours).encode(), repr(theirs).encode()
        if are_times(path[-1] if path else "", ours, theirs):
            self._new.learn_time(a, b, pointer_text(path))
            return True
        return False

    def _learns(self, path: Path) -> bool:
        return self._defined or self._options.learns(self._subject, path=path)

    def _difference(self, ours: Any, theirs: Any, path: Path) -> Difference:
        note = ""
        if isinstance(ours, str) and isinstance(theirs, str):
            note = self._identifiers.conflict(ours.encode(errors="replace"), theirs.encode(errors="replace"))
        return Difference("body", pointer_text(path) or "body", ours, theirs, note)
