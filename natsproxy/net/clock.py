"""The clock of a proxy: trio's, in whole nanoseconds, so that a mock clock sets the times of a capture."""

from __future__ import annotations

import time
from typing import Final

import trio

from natsproxy.capture.write.builder import BlockBuilder


def now_ns() -> int:
    """Return trio's clock in nanoseconds."""
    return int(trio.current_time() * 1_000_000_000)


def unix_ns(now: int) -> int:
    """Return the Unix time (ns) at a time of trio's clock (ns), by the system's clock as it is set now."""
    return now + time.time_ns() - now_ns()


def ahead_of_monotonic() -> int:
    """Return how far trio's clock is ahead of the system's monotonic one, in nanoseconds.

    The process may be preempted between two readings: the shortest of a few tries counts.
    """
    tries = [(time.monotonic_ns(), now_ns(), time.monotonic_ns()) for _ in range(3)]
    before, now, after = min(tries, key=lambda one: one[2] - one[0])
    return now - (before + after) // 2


class BlockClocks:
    """The two clocks of a capture's blocks: trio's, and the wall clock (Unix).

    The offset between the two is kept until the wall clock was moved by more than `STEADY`: so times in
    different blocks differ exactly as on trio's clock, and latencies across blocks are exact.
    """

    STEADY: Final = 100_000
    """The largest change of the offset that counts as an inexact reading, ns."""

    def __init__(self) -> None:
        self._distance: int | None = None

    def read(self) -> tuple[int, int]:
        """Return both clocks at one moment, in nanoseconds."""
        tries = [(now_ns(), time.time_ns(), now_ns()) for _ in range(3)]
        before, wall, after = min(tries, key=lambda one: one[2] - one[0])
        mono = (before + after) // 2
        if self._distance is None or abs(wall - mono - self._distance) > self.STEADY:
            self._distance = wall - mono
        return mono, mono + self._distance

    def begin(self, builder: BlockBuilder) -> None:
        """Begin a block where the builder has none, and does not drop what it gets."""
        if not (builder.begun or builder.dropping):
            builder.begin(*self.read())


def boot_id() -> bytes:
    """Return the id of the machine's present boot, which resets its clock; zeros for none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - a kernel file
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except OSError:
        return bytes(16)
