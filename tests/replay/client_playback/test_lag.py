"""The lag of frames behind their schedule."""

from __future__ import annotations

from natsproxy.replay.client_playback.lag import Lag

MS = 1_000_000


def test_percentiles_count_frames_not_writes() -> None:
    lag = Lag()
    lag.add(0, 90)
    lag.add(1 * MS, 9)
    lag.add(7 * MS, 1)
    assert lag.percentile(0.5) == 50_000
    assert lag.percentile(0.99) == 1_050_000
    assert lag.percentile(1) == lag.worst == lag.last == 7 * MS


def test_a_lag_of_seconds_is_the_worst_and_no_lag_is_none() -> None:
    lag = Lag()
    assert lag.percentile(0.99) == 0
    lag.add(5_000 * MS, 1)
    assert lag.percentile(0.5) == 5_000 * MS
