"""The clocks of a proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import trio

from natsproxy.net.clock import clocks


def test_clocks_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process loses its turn between two readings, for 5 s here."""
    pauses: Iterator[float] = iter([0, 5, 0, 0, 0, 0, 5, 0, 0])
    now = 100.0

    def tick() -> float:
        nonlocal now
        now += 1e-6 + next(pauses)
        return now

    monkeypatch.setattr(trio, "current_time", tick)
    monkeypatch.setattr(time, "time_ns", lambda: int((tick() + 1_000) * 1e9))
    mono, wall = clocks()
    assert abs(wall - mono - 1_000_000_000_000) < 1_000
