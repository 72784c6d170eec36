"""A set of subject patterns: one look-up finds the values of all patterns that collide with a subject.

Two subjects collide where some literal subject could match both (`subjects.collide`, the server's bugs
included).  Patterns without and with wildcards have a tree of tokens each, since a wildcard in the subject is
compared differently in each.  A look-up walks a tree with a frontier of nodes; where `>` in the subject
covers a whole subtree, its values are cached.  Immutable otherwise, so connections share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from natsproxy.errors import ConfigError
from natsproxy.protocol.subjects import STAR, TAIL, has_wildcard, is_valid_subscribe

T = TypeVar("T")
_STAR, _TAIL = STAR[0], TAIL[0]


class _CollisionNode(Generic[T]):
    """A token position.

    here: values of patterns that end here.  tail: those of patterns that end in `>`.  stars, tails: the
    children whose token begins with `*`, and with `>`.
    """

    __slots__ = ("_below", "children", "here", "stars", "tail", "tails")

    def __init__(self) -> None:
        self.children: dict[bytes, _CollisionNode[T]] = {}
        self.stars: list[_CollisionNode[T]] = []
        self.tails: list[_CollisionNode[T]] = []
        self.here: set[T] = set()
        self.tail: set[T] = set()
        self._below: frozenset[T] | None = None

    def child(self, token: bytes) -> _CollisionNode[T]:
        """Return the child for a token, created if it is missing."""
        found = self.children.get(token)
        if found is None:
            found = self.children[token] = _CollisionNode()
            if token[0] == _STAR:
                self.stars.append(found)
            elif token[0] == _TAIL:
                self.tails.append(found)
        return found

    @property
    def below(self) -> frozenset[T]:
        """The values of all longer patterns."""
        if self._below is None:
            children = self.children.values()
            self._below = frozenset().union(*(child.here | child.below for child in children))
        return self._below


class CollisionSet(Generic[T]):
    """Patterns and their values.  Raises ConfigError for a pattern that the server would reject."""

    __slots__ = ("_literal", "_wild")

    def __init__(self, patterns: Iterable[tuple[bytes, T]]) -> None:
        self._literal: _CollisionNode[T] = _CollisionNode()
        self._wild: _CollisionNode[T] = _CollisionNode()
        for pattern, value in patterns:
            if not is_valid_subscribe(pattern):
                raise ConfigError(f"{pattern!r} is not a valid subject pattern")
            node = self._wild if has_wildcard(pattern) else self._literal
            tokens = pattern.split(b".")
            for token in tokens:
                node = node.child(token)
            node.here.add(value)
            if tokens[-1] == TAIL:
                node.tail.add(value)

    def find(self, subject: bytes) -> frozenset[T]:
        """Return the values of all patterns that collide with a subject, which may have wildcards."""
        tokens = subject.split(b".")
        found: set[T] = set()
        if has_wildcard(subject):
            _covered(self._literal, tokens, found)
            _meeting(self._wild, tokens, found)
        else:
            node: _CollisionNode[T] | None = self._literal
            for token in tokens:
                node = node.children.get(token) if node is not None else None
            found |= node.here if node is not None else set()
            _covering(self._wild, tokens, found)
        return frozenset(found)


def _covered(root: _CollisionNode[T], tokens: list[bytes], found: set[T]) -> None:
    """Add the literal patterns that are subsets of a subject with wildcards."""
    frontier = [root]
    for token in tokens:
        if token == TAIL:
            for node in frontier:
                found |= node.below
            return
        if token[:1] == STAR:
            frontier = [child for node in frontier for child in node.children.values()]
        else:
            frontier = [node.children[token] for node in frontier if token in node.children]
        if not frontier:
            return
    for node in frontier:
        found |= node.here


def _covering(root: _CollisionNode[T], tokens: list[bytes], found: set[T]) -> None:
    """Add the patterns with wildcards of which a literal subject is a subset."""
    frontier = [root]
    for token in tokens:
        following: list[_CollisionNode[T]] = []
        for node in frontier:
            tail = node.children.get(TAIL)
            if tail is not None:
                found |= tail.here
            if token:
                following += node.stars
                if token[0] != _STAR and token in node.children:
                    following.append(node.children[token])
        if not following:
            return
        frontier = following
    for node in frontier:
        found |= node.here


def _meeting(root: _CollisionNode[T], tokens: list[bytes], found: set[T]) -> None:
    """Add the patterns with wildcards that meet a subject with wildcards token by token."""
    frontier = [root]
    for token in tokens:
        following: list[_CollisionNode[T]] = []
        for node in frontier:
            found |= node.tail
            if token[:1] in (STAR, TAIL):
                following += node.children.values()
            elif token:
                following += node.stars
                following += node.tails
                if token in node.children:
                    following.append(node.children[token])
        if not following:
            return
        frontier = following
    for node in frontier:
        found |= node.here
        if TAIL in tokens:
            found |= node.below
