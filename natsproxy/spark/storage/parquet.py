"""Reads and writes of Parquet folders, as all jobs do them.

Spark can overwrite a folder as a whole (static) or only those of its sub-folders that have new rows
(dynamic).  No write relies on the session's setting: each one states its mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from natsproxy.spark.sail import refuse
from natsproxy.spark.storage import local

if TYPE_CHECKING:
    import pyarrow as pa


def dated(frames: DataFrame) -> DataFrame:
    """Return frames with the column `date`, the day (UTC) by which they are stored."""
    return frames.withColumn("date", F.to_date("ts"))


def write_folder(name: str, rows: DataFrame, path: str) -> None:
    """Write rows of the table `name` as a whole folder, replacing its contents.

    Rows of `frames` are stored by day, in folders `date=...`.
    """
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer.partitionBy("date") if name == "frames" else writer).parquet(path)


def replace_hours(rows: DataFrame, path: str) -> None:
    """Write rows into the folders of their hours below `path`, and leave the folders of other hours alone.

    An hour without a row is left alone too: Spark replaces only folders that get rows.
    """
    refuse(rows.sparkSession, "tables by the hour")
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy("date", "hour").parquet(path)


def no_rows(schema: str) -> pa.Table:
    """Return a table that has columns and no rows; schema: as DDL, of plain types and arrays of texts."""
    import pyarrow as pa

    from natsproxy.capture.columns.arrow import TYPES

    texts = pa.list_(pa.string())
    types = {**TYPES, "boolean": pa.bool_(), "date": pa.date32()}
    types |= {"array<string>": texts, "array<array<string>>": pa.list_(texts)}
    columns = (column.split() for column in schema.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in columns]).empty_table()


def file_without_rows(schema: str) -> bytes:
    """Return a Parquet file that has columns and no rows; schema: as for `no_rows`."""
    file = BytesIO()
    local.write_file(no_rows(schema), file)
    return file.getvalue()


def read_folders(spark: SparkSession, out: str, source: str, places: Iterable[str], schema: str) -> DataFrame:
    """Return the rows of `frames` or `items` in some folders; places: below `out`, schema: the source's."""
    paths = [f"{out}/{place}" for place in places]
    if not paths:
        return spark.createDataFrame([], schema)
    # Without a common base, Spark refuses several folders that have folders of days.
    reader = spark.read.schema(schema).option("basePath", f"{out}/{source}")
    return reader.parquet(*paths).drop("batches")
