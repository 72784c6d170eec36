"""A set of subject patterns with values: one look-up finds all patterns that match a subject.

Literal patterns are one dictionary look-up.  Patterns with wildcards are a tree of tokens; a look-up walks it
with a frontier of nodes.  So its cost depends on the subject and on the wildcards that fit it, not on the
number of patterns.  Matching is the server's (see `subjects`).  Immutable, so connections share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from natsproxy.errors import ConfigError
from natsproxy.protocol.subjects import STAR, TAIL, has_empty_token, has_wildcard, is_valid_subscribe

T = TypeVar("T")


class _PatternNode(Generic[T]):
    """A token position of the tree.  here: patterns that end on it.  tail: patterns that end in `>` next."""

    __slots__ = ("here", "literals", "star", "tail")

    def __init__(self) -> None:
        self.literals: dict[bytes, _PatternNode[T]] = {}
        self.star: _PatternNode[T] | None = None
        self.here: list[tuple[int, T]] = []
        self.tail: list[tuple[int, T]] = []


class PatternSet(Generic[T]):
    """Patterns and their values; a pattern may occur more than once.

    patterns: the pairs that it was made from, in that order.
    Raises ConfigError for a pattern that the server would reject.
    """

    __slots__ = ("_exact", "_root", "patterns")

    def __init__(self, patterns: Iterable[tuple[bytes, T]]) -> None:
        self.patterns: Final = tuple(patterns)
        self._exact: dict[bytes, list[tuple[int, T]]] = {}
        self._root: _PatternNode[T] | None = None
        for order, (pattern, value) in enumerate(self.patterns):
            if not is_valid_subscribe(pattern):
                raise ConfigError(f"{pattern!r} is not a valid subject pattern")
            if has_wildcard(pattern):
                self._root = self._root or _PatternNode()
                _insert(self._root, pattern, (order, value))
            else:
                self._exact.setdefault(pattern, []).append((order, value))

    def __len__(self) -> int:
        return len(self.patterns)

    def _found(self, subject: bytes) -> list[tuple[int, T]]:
        found = self._exact.get(subject, [])
        if self._root is None:
            return found
        wild = _walk(self._root, subject)
        return sorted(found + wild, key=lambda entry: entry[0]) if wild else found

    def find(self, subject: bytes) -> tuple[T, ...]:
        """Return the values of all patterns that match, in the order they were given."""
        return tuple([value for _, value in self._found(subject)])

    def first(self, subject: bytes) -> T | None:
        """Return the value of the first given pattern that matches, None without one."""
        found = self._found(subject)
        return found[0][1] if found else None

    def matches(self, subject: bytes) -> bool:
        """Tell whether any pattern matches."""
        return subject in self._exact or (self._root is not None and bool(_walk(self._root, subject)))


def _insert(node: _PatternNode[T], pattern: bytes, entry: tuple[int, T]) -> None:
    for token in pattern.split(b"."):
        if token == TAIL:
            node.tail.append(entry)
            return
        if token == STAR:
            node.star = node.star or _PatternNode()
            node = node.star
        else:
            node = node.literals.setdefault(token, _PatternNode())
    node.here.append(entry)


def _walk(root: _PatternNode[T], subject: bytes) -> list[tuple[int, T]]:
    if has_empty_token(subject):
        return []
    found: list[tuple[int, T]] = []
    frontier = [root]
    for token in subject.split(b"."):
        following: list[_PatternNode[T]] = []
        for node in frontier:
            if node.tail:  # `>` stands for at least one token: there is one here
                found += node.tail
            child = node.literals.get(token)
            if child is not None:
                following.append(child)
            if node.star is not None:
                following.append(node.star)
        if not following:
            return found
        frontier = following
    for node in frontier:
        found += node.here
    return found
