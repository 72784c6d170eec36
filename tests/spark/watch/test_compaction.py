"""Compaction: small batch ranges become large ones, and few are left."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.storage.watch_state import WatchState
from natsproxy.spark.watch.compaction import ranges_to_merge
from tests.spark.storage.test_watch_state import batches


def test_small_ranges_become_large_ones() -> None:
    """Few of each level are left; large ones are never written again; each row a few times at most."""
    state, written = WatchState(), 0
    for batch in range(1_000):
        size = 2_000 if batch in (300, 301) else 10
        state.add_batch("frames", batch, batches(batch, size=size), [], 0)
        while small := ranges_to_merge(state.ranges["frames"], fan=4, full=1_000):
            first, last, size = small[0].first, small[-1].last, sum(one.bytes for one in small)
            written += size
            merged = batches(first, last, small[0].level + 1, size)
            assert state.merge("frames", merged) == [one.place for one in small]
    ranges = state.ranges["frames"]
    assert [(one.first, one.last) for one in ranges] == sorted((one.first, one.last) for one in ranges)
    assert sum(one.last - one.first + 1 for one in ranges) == 1_000
    assert len(ranges) < 30
    assert written < 5 * 10_000
