"""The clock of a proxy: trio's, in whole nanoseconds, so that a mock clock sets the times of a capture."""

from __future__ import annotations

import time

import trio


def now_ns() -> int:
    """Return trio's clock in nanoseconds."""
    return int(trio.current_time() * 1_000_000_000)


def clocks() -> tuple[int, int]:
    """Return trio's clock and the wall clock (Unix) of one moment, in nanoseconds.

    The process may lose its turn between two readings, by which a whole block would be dated wrong: of a few
    tries the shortest counts.
    """
    tries = [(now_ns(), time.time_ns(), now_ns()) for _ in range(3)]
    before, wall, after = min(tries, key=lambda one: one[2] - one[0])
    return (before + after) // 2, wall
