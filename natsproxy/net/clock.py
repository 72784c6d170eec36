"""The clock of a proxy: trio's, in whole nanoseconds, so that a mock clock sets the times of a capture."""

from __future__ import annotations

import trio


def now_ns() -> int:
    """Return trio's clock in nanoseconds."""
    return int(trio.current_time() * 1_000_000_000)
