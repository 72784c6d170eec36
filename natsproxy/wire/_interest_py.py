"""Interest in pure Python: clauses compiled to one small trie per op and need.

A trie node is a list `[children, star, tail, end]`: literal tokens, the node of `*`, whether `>` stands
here, whether a pattern ends here.  Answers that depend on the subject alone are cached, and the cache is
bounded: clients choose the subjects, and inboxes never repeat.
"""

from __future__ import annotations

from typing import Any

from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import OPS

_CACHE_MAX = 4096


def _trie(patterns: tuple[bytes, ...]) -> list[Any]:
    root: list[Any] = [{}, None, False, False]
    for pattern in patterns:
        node = root
        tokens = pattern.split(b".")
        for at, token in enumerate(tokens):
            if token == b">" and at == len(tokens) - 1:
                node[2] = True
                break
            if token == b"*":
                if node[1] is None:
                    node[1] = [{}, None, False, False]
                node = node[1]
            else:
                node = node[0].setdefault(token, [{}, None, False, False])
        else:
            node[3] = True
    return root


def _matches(node: list[Any], tokens: list[bytes], at: int) -> bool:
    while at < len(tokens):
        if node[2]:
            return True
        literal = node[0].get(tokens[at])
        star = node[1]
        at += 1
        if literal is None:
            if star is None:
                return False
            node = star
        elif star is None:
            node = literal
        elif _matches(literal, tokens, at):
            return True
        else:
            node = star
    return bool(node[3])


class Interest:
    """Compiled clauses (see `wire/interest.py`)."""

    def __init__(self, clauses: tuple[Clause, ...] = ()) -> None:
        self.clauses = tuple(clauses)
        self._by_op: list[list[tuple[Need, list[Any] | None, list[Any] | None]]] = [[] for _ in OPS]
        for clause in self.clauses:
            match = None if clause.match is None else _trie(clause.match)
            unless = _trie(clause.unless) if clause.unless else None
            for spec in OPS:
                if clause.ops >> spec.op & 1:
                    subject_free = "subject" not in next(iter(spec.forms.values()))
                    entry = (clause.need, None, None) if subject_free else (clause.need, match, unless)
                    self._by_op[spec.op].append(entry)
        for wants in self._by_op:
            wants.sort(key=lambda want: -want[0])
        self._cache: list[dict[bytes, Need]] = [{} for _ in OPS]

    def wants(self, op: int) -> bool:
        """Tell whether any clause wants any frame of `op`."""
        return bool(self._by_op[op])

    def need(self, op: int, subject: bytes = b"") -> Need:
        """Return the part of a frame of `op` on `subject` that is wanted."""
        wants = self._by_op[op]
        if not wants:
            return Need.NONE
        cache = self._cache[op]
        found = cache.get(subject)
        if found is None:
            if len(cache) >= _CACHE_MAX:  # clients choose the subjects, and inboxes never repeat
                cache.clear()
            found = cache[subject] = self._look_up(wants, subject)
        return found

    def _look_up(self, wants: list[tuple[Need, list[Any] | None, list[Any] | None]], subject: bytes) -> Need:
        tokens = subject.split(b".")
        whole = b"" not in tokens  # a subject with an empty token matches nothing, not even `>`
        for need, match, unless in wants:
            if match is not None and not (whole and _matches(match, tokens, 0)):
                continue
            if unless is not None and whole and _matches(unless, tokens, 0):
                continue
            return need
        return Need.NONE
