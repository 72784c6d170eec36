"""Folding of subject templates: a position with too many different names becomes `**`.

Templates have no numbers and ids left, but names of users or places vary as much.  Where more than `MOST`
different names follow the same tokens, all of them become `**`, which no NATS pattern contains.  What follows
them is counted together, and may be folded in turn.  A first token that begins with `$` or `_`
is never folded.

The result does not depend on the order of the templates, and memory grows with the result only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FOLDED: Final = "**"
MOST: Final = 50
"""The most names of one position that are listed one by one."""
_DEPTH: Final = 16
"""The most tokens of a template that are considered."""


class _FoldingNode(dict[str, "_FoldingNode"]):
    """A node of the tree: the next tokens, each with its own node."""

    def add(self, tokens: list[str]) -> None:
        node = self
        for token in tokens:
            node = node.setdefault(token, _FoldingNode())

    def fold(self, *, first: bool) -> None:
        """Merge the tokens of this node if there are too many, then those of the nodes below."""
        names = [name for name in self if not (first and name[:1] in ("$", "_"))]
        if FOLDED in self or len(names) > MOST:
            merged = _FoldingNode()
            for name in names:
                merged.merge(self.pop(name))
            self[FOLDED] = merged
        for node in self.values():
            node.fold(first=False)

    def merge(self, other: _FoldingNode) -> None:
        for name, node in other.items():
            self.setdefault(name, _FoldingNode()).merge(node)

    def prefixes(self, before: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
        if FOLDED in self:
            yield before
        for name, node in self.items():
            yield from node.prefixes((*before, name))


def folds(templates: Iterable[str]) -> list[str]:
    """Return the prefix of each position to fold, the shortest first: "" or "chat.**." for example.

    A `**` in a template says that its position was folded before.
    """
    root = _FoldingNode()
    for number, template in enumerate(templates, 1):
        root.add(template.split(".")[:_DEPTH])
        if number % 10_000 == 0:
            root.fold(first=True)
    root.fold(first=True)
    found = sorted(root.prefixes(()), key=lambda tokens: (len(tokens), tokens))
    return ["".join(f"{token}." for token in tokens) for tokens in found]
