"""A dict of bounded size: tables must not grow with the capture, or with the time that a proxy runs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

LIMIT: Final = 100_000
"""Entries of one table.  Readers look back over requests and deliveries that are still open, far fewer."""
K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V], Generic[K, V]):
    """A dict that drops its oldest entry beyond `LIMIT`.

    Setting a known key again does not make it younger.
    """

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > LIMIT:
            self.popitem(last=False)
