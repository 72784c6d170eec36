"""The clocks of a capture's blocks."""

from __future__ import annotations

import time

import pytest
import trio

from natsproxy.net.clock import BlockClocks

SECOND = 1_000_000_000


class Clocks:
    """Both clocks under the control of a test; a reading takes a microsecond, and the next of `pauses`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100 * SECOND
        self.distance = 1_000 * SECOND
        self.pauses: list[int] = []
        monkeypatch.setattr(trio, "current_time", lambda: self._tick() / SECOND)
        monkeypatch.setattr(time, "time_ns", lambda: self._tick() + self.distance)

    def _tick(self) -> int:
        self.now += 1_000 + (self.pauses.pop(0) if self.pauses else 0)
        return self.now


def test_both_clocks_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process loses its turn between two readings."""
    clocks = Clocks(monkeypatch)
    clocks.pauses = [0, SECOND, 0, 0, 0, 0, SECOND]
    mono, wall = BlockClocks().read()
    assert abs(wall - mono - clocks.distance) < 1_000


def test_only_a_wall_clock_that_was_moved_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one whose reading scatters."""
    clocks, blocks = Clocks(monkeypatch), BlockClocks()
    distances = set()
    for scattered in (0, 30_000, -30_000):
        clocks.distance = 1_000 * SECOND + scattered
        mono, wall = blocks.read()
        distances.add(wall - mono)
    assert len(distances) == 1
    clocks.distance = 1_001 * SECOND
    mono, wall = blocks.read()
    assert abs(wall - mono - clocks.distance) < 1_000
