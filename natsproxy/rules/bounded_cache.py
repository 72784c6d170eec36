"""What rules remember of subjects: bounded in number and in length, since subjects are hostile.

A subject that is longer than `LONGEST` is worked out each time: otherwise whoever chooses subjects would
choose how much is kept of them, for each plan and direction.
"""

from __future__ import annotations

from typing import Final, TypeVar

MOST: Final = 8192
LONGEST: Final = 400
"""Bytes of the subjects in a key."""
K = TypeVar("K")
V = TypeVar("V")


def remember(cache: dict[K, V], key: K, value: V, length: int) -> V:
    """Put a value into a cache, which is emptied when it is full; return it.  length: the key's bytes."""
    if length <= LONGEST:
        if len(cache) >= MOST:
            cache.clear()
        cache[key] = value
    return value
