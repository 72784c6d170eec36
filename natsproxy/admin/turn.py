"""Long work in slices: the traffic of the same loop does not wait for an answer."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from typing import Final, TypeVar

import trio

T = TypeVar("T")
_SLICE: Final = 1_000_000  # ns


async def sliced(values: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield values, and let others run whenever a slice of time is used up.

    Use it inside `aclosing`.
    """
    until = time.perf_counter_ns() + _SLICE
    for value in values:
        yield value
        if time.perf_counter_ns() >= until:
            await trio.lowlevel.checkpoint()
            until = time.perf_counter_ns() + _SLICE
