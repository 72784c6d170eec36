"""One Spark session for all tests: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session of two cores, with the data source registered.

    An editable install is no folder on the path, so Spark's own search does not see the source.
    """
    pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")
    from natsproxy.spark.jobs import register
    from natsproxy.spark.session import local_session

    session = local_session(2, **SETTINGS)
    register(session)
    yield session
    session.stop()
