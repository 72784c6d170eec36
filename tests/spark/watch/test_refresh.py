"""The refreshing of tables: its share of the time."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.watch.refresh import SHARE, Throttle


def test_refreshing_takes_its_share_of_the_time() -> None:
    """However long it takes."""
    now = 100.0
    throttle = Throttle(60, lambda: now)
    assert not throttle.due()
    now += 60
    assert throttle.due()
    with throttle.work():
        now += 1
    now += 59
    assert not throttle.due()
    now += 1
    assert throttle.due()
    with throttle.work():
        now += 100
    now += 100 * (SHARE - 1) - 1
    assert not throttle.due()
    now += 1
    assert throttle.due()
