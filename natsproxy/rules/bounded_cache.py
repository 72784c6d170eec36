"""A cache of answers about subjects, bounded in number and in length, since clients choose their subjects.

A subject longer than `MAX_KEY_BYTES` is not stored and its answer computed each time: otherwise a client
would choose how much memory each rule index and direction keeps.
"""

from __future__ import annotations

from typing import Final, TypeVar

MAX_ENTRIES: Final = 8192
MAX_KEY_BYTES: Final = 400
K = TypeVar("K")
V = TypeVar("V")


def store(cache: dict[K, V], key: K, value: V, key_bytes: int) -> V:
    """Store a value and return it; a full cache is emptied first.  key_bytes: the length of its subjects."""
    if key_bytes <= MAX_KEY_BYTES:
        if len(cache) >= MAX_ENTRIES:
            cache.clear()
        cache[key] = value
    return value
