"""Long answers made in time slices, so that they do not delay traffic on the same loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final, TypeVar

import trio

T = TypeVar("T")
_SLICE: Final = 1_000_000  # ns
_PIECE: Final = 64 * 1024  # characters


async def sliced(values: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield values, and let other tasks run whenever a time slice is used up.

    Use it inside `aclosing`.
    """
    until = time.perf_counter_ns() + _SLICE
    for value in values:
        yield value
        if time.perf_counter_ns() >= until:
            await trio.lowlevel.checkpoint()
            until = time.perf_counter_ns() + _SLICE


async def joined(parts: Iterable[str]) -> AsyncGenerator[str, None]:
    """Join small parts of a text into pieces worth sending; the parts are made in time slices.

    Use it inside `aclosing`.
    """
    gathered, size = list[str](), 0
    async with aclosing(sliced(parts)) as each:
        async for part in each:
            gathered.append(part)
            size += len(part)
            if size >= _PIECE:
                yield "".join(gathered)
                gathered, size = [], 0
    yield "".join(gathered)
