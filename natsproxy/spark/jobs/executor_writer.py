"""`frames` written where they are read: each task of Spark's makes files of Parquet from its blocks itself.

Through Spark, frames go from the decoder to the JVM, become rows there and then columns again.  A task that
writes the decoder's batches with pyarrow needs a small part of the processor time (a fortieth, measured with
short messages).  Spark still says which task reads what, and runs them; what comes back from a task is the
list of its files.

It is for folders that tasks and driver see as files: a session of this machine.  Elsewhere Spark's own writer
makes the same rows (`natsproxy/spark/jobs/store.py`).

Files are made under `frames/_temporary` and moved into their days when all tasks have ended, so a task that
failed leaves nothing that could be taken for frames.
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
from natsproxy.spark.source.data_source import NatscapReader, read_run
from natsproxy.spark.source.options import parse

if TYPE_CHECKING:
    import pyarrow as pa

    from natsproxy.capture.export.parquet import FramesFile

FORMAT = "natscap_parts"
PARTITION_BYTES = 16 << 20
"""About how much one task reads: small enough that a small capture too has work for all cores."""
FILES_OPEN = 4
"""A task has files of so many days open at once."""
_TEMPORARY = "_temporary"
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The day of what has none (a block that could not be read), as Spark names it."""

Part = tuple[str, str, int]
"""A file: its day, its name in the temporary folder, its rows."""


def write(spark: SparkSession, options: Mapping[str, str], folder: Path) -> int:
    """Write the table `frames` by days under `folder`, which is not there yet; return how many there are.

    options: of the data source, with the captures.  Raises what Spark raises; NatsproxyError where a file
    cannot be written.
    """
    temporary = folder / _TEMPORARY
    spark.dataSource.register(ExecutorSource)
    given = {"partitionBytes": str(PARTITION_BYTES), **options, "folder": str(folder)}
    try:
        temporary.mkdir(parents=True)
        parts: list[Part] = [(*row,) for row in spark.read.format(FORMAT).options(**given).load().collect()]
        for day, name, _ in parts:
            place = folder / f"date={day}"
            place.mkdir(exist_ok=True)
            (temporary / name).rename(place / name)
        shutil.rmtree(temporary)
        (folder / "_SUCCESS").touch()
    except OSError as error:
        raise _refused(folder, error) from None
    return sum(rows for _, _, rows in parts)


class ExecutorSource(DataSource):
    """A data source that writes; its rows are what it wrote."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The columns of a `Part`."""
        return "day string, name string, rows bigint"

    def reader(self, schema: StructType) -> ExecutorReader:
        """Return what writes."""
        return ExecutorReader(schema, self.options)


class ExecutorReader(NatscapReader):
    """Plans as the source of frames does; a task writes what it would have given to Spark."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, parse(options))
        self._folder = Path(options["folder"])

    def read(self, partition: InputPartition) -> Iterator[Part]:
        """Write the frames of a run of blocks; yield the files."""
        from natsproxy.capture.columns.arrow import schema

        days = Days(self._folder / _TEMPORARY)
        for batch in read_run(partition, schema(), self._options):
            days.add(batch)
        days.close(most=0)
        yield from days.parts


class Days:
    """The files of one task that are being written.  Raises NatsproxyError for what the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[str, FramesFile]] = {}
        self.parts: list[Part] = []

    @property
    def open(self) -> int:
        """How many files are being written."""
        return len(self._open)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write frames into the files of their days."""
        try:
            for day, rows in by_day(batch):
                self._file(day).add(rows)
        except OSError as error:
            raise _refused(self._folder.parent, error) from None

    def _file(self, day: str) -> FramesFile:
        from natsproxy.capture.export.parquet import FramesFile

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
                with file:  # which ends it
                    pass
            except OSError as error:
                raise _refused(self._folder.parent, error) from None
            self.parts.append((day, name, file.rows))


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the frames of each day (UTC)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.floor_temporal(batch.column("ts"), unit="day").cast(pa.date32())
    found = days.unique().to_pylist()
    for day in found:
        rows = pc.is_null(days) if day is None else pc.equal(days, pa.scalar(day))
        yield _NO_DAY if day is None else day.isoformat(), batch if len(found) == 1 else batch.filter(rows)


def _refused(folder: Path, error: OSError) -> NatsproxyError:
    text = os.strerror(error.errno) if error.errno else str(error)
    return NatsproxyError(f"{folder}: cannot write there: {text}")
