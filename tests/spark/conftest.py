"""One Spark session for all tests: starting one takes longer than most of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",  # to compile a plan takes longer than to run it on a few rows
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


def load(spark: SparkSession, captures: Iterable[Path]) -> tuple[DataFrame, DataFrame]:
    """Return the frames and the items of captures.

    Decoded here as the data source decodes them on a worker: its processes cost more than a test's work.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from natsproxy.spark.options import parse
    from natsproxy.spark.plan import runs
    from natsproxy.spark.schema import FRAMES, ITEMS
    from natsproxy.spark.source import read_run
    from natsproxy.spark.tables import PAYLOAD_BYTES

    found = []
    for what, ddl in (("frames", FRAMES), ("items", ITEMS)):
        schema = StructType.fromDDL(ddl)
        given = {"paths": json.dumps(list(map(str, captures))), "what": what, "payload": str(PAYLOAD_BYTES)}
        options = parse(given)
        batches = [
            batch
            for path in options.paths
            for run in runs(path, options)
            for batch in read_run(run, schema, options)
        ]
        arrow = to_arrow_schema(schema, timezone="UTC")
        # As one batch: from a table of several, Spark stops at the first that is empty.
        table = pa.Table.from_batches(batches, arrow).combine_chunks()
        found.append(spark.createDataFrame(table, schema))
    return found[0], found[1]
