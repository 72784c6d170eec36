"""Frames written where they are read: each task of Spark makes files of Parquet from its blocks itself.

Through Spark, frames go from the decoder to the JVM, become rows there and then columns again.  A task that
writes the decoder's batches with pyarrow needs a small part of the processor time (a fortieth, measured with
short messages).  Spark still plans the tasks and runs them; each task returns the list of its files.

It works where tasks and driver see the same files: in a session of this machine.  Elsewhere Spark's own
writer makes the same rows (`store.py`).

Files are made under `frames/_temporary` and moved into their days when all tasks have ended, so a failed task
leaves no file that a reader could take for frames.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from natsproxy.errors import NatsproxyError
from natsproxy.spark.source.arrow_batches import read_partition
from natsproxy.spark.source.data_source import NatscapReader
from natsproxy.spark.source.options import parse

if TYPE_CHECKING:
    import pyarrow as pa

    from natsproxy.capture.export.parquet_file import FramesFile

FORMAT = "natscap_executor_writer"
PARTITION_BYTES = 16 << 20
"""About the bytes that one task reads: few enough that a small capture too has work for all cores."""
FILES_OPEN = 4
"""The number of days whose files a task has open at once."""
_TEMPORARY = "_temporary"
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The day of rows without a time (of blocks that could not be read), as Spark names it."""

WrittenFile = tuple[str, str, int]
"""A written file: its day, its name in the temporary folder, its number of rows."""


def write(spark: SparkSession, options: Mapping[str, str], folder: Path) -> int:
    """Write the table `frames` by days under `folder`, which does not exist yet; return the number of rows.

    options: of the data source, with the captures.  Raises Spark's own exceptions, and NatsproxyError where a
    file cannot be written.
    """
    temporary = folder / _TEMPORARY
    spark.dataSource.register(ExecutorSource)
    given = {"partitionBytes": str(PARTITION_BYTES), **options, "folder": str(folder)}
    try:
        temporary.mkdir(parents=True)
        rows = spark.read.format(FORMAT).options(**given).load().collect()  # this runs the tasks
        files: list[WrittenFile] = [(*row,) for row in rows]
        for day, name, _ in files:
            place = folder / f"date={day}"
            place.mkdir(exist_ok=True)
            (temporary / name).rename(place / name)
        shutil.rmtree(temporary)
        (folder / "_SUCCESS").touch()
    except OSError as error:
        raise _write_error(folder, error) from None
    return sum(count for _, _, count in files)


class ExecutorSource(DataSource):
    """A data source that writes files; each row that it returns is one `WrittenFile`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a `WrittenFile`."""
        return "day string, name string, rows bigint"

    def reader(self, schema: StructType) -> ExecutorReader:
        """Return the reader whose tasks write."""
        return ExecutorReader(schema, self.options)


class ExecutorReader(NatscapReader):
    """A reader with the partitions of `natscap`, whose tasks write their batches to files."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, parse(options))
        self._folder = Path(options["folder"])

    def read(self, partition: InputPartition) -> Iterator[WrittenFile]:
        """Write the frames of one partition; yield the files."""
        from natsproxy.capture.columns.arrow import schema

        days = DayFiles(self._folder / _TEMPORARY)
        for batch in read_partition(partition, schema(), self._options):
            days.add(batch)
        days.close(most=0)
        yield from days.written


class DayFiles:
    """The files of one task, by day.  Raises NatsproxyError where the disk refuses a write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[str, FramesFile]] = {}
        self.written: list[WrittenFile] = []

    @property
    def open(self) -> int:
        """Return the number of files that are being written."""
        return len(self._open)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write frames into the files of their days."""
        try:
            for day, rows in by_day(batch):
                self._file(day).add(rows)
        except OSError as error:
            raise _write_error(self._folder.parent, error) from None

    def _file(self, day: str) -> FramesFile:
        from natsproxy.capture.export.parquet_file import FramesFile

        if day not in self._open:
            self.close(most=FILES_OPEN - 1)
            name = f"part-{uuid.uuid4()}.zstd.parquet"
            self._open[day] = name, FramesFile(self._folder / name)
        return self._open[day][1]

    def close(self, *, most: int) -> None:
        """End the oldest files until no more than `most` are open."""
        while len(self._open) > most:
            day = next(iter(self._open))
            name, file = self._open.pop(day)
            try:
                with file:  # leaving the context ends the file
                    pass
            except OSError as error:
                raise _write_error(self._folder.parent, error) from None
            self.written.append((day, name, file.rows))


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the frames of each day (UTC)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.floor_temporal(batch.column("ts"), unit="day").cast(pa.date32())
    found = days.unique().to_pylist()
    for day in found:
        rows = pc.is_null(days) if day is None else pc.equal(days, pa.scalar(day))
        yield _NO_DAY if day is None else day.isoformat(), batch if len(found) == 1 else batch.filter(rows)


def _write_error(folder: Path, error: OSError) -> NatsproxyError:
    text = os.strerror(error.errno) if error.errno else str(error)
    return NatsproxyError(f"{folder}: cannot write there: {text}")
