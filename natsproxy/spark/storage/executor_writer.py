"""Captures written as `frames` and `items` by the tasks that read them: block by block, without Java.

Through Spark, frames go from the decoder to the JVM, become rows there and then columns again.  A task that
writes the decoder's batches with pyarrow needs a small part of the processor time (a fortieth, measured with
short messages).  Captures of less than `HERE_BYTES` are read by threads of this process: Spark's Python
processes cost six seconds of processor time before they read a byte, and one thread decodes while another
one compresses.  More is work for Spark's tasks, on all cores; each returns the list of its files.

It works where tasks and driver see the same files: in a local session.  Elsewhere Spark's own
writer makes the same rows (`store.py`).

Files are made under `frames/_temporary` and moved into their folders when all tasks have ended, so a failed
task leaves no file that a reader could take for rows.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from natsproxy.spark.source.arrow_batches import Wanted, item_schema, read_together
from natsproxy.spark.source.data_source import plan
from natsproxy.spark.source.options import Options, parse
from natsproxy.spark.storage import local

if TYPE_CHECKING:
    import pyarrow as pa

    from natsproxy.capture.export.parquet_file import FramesFile

FORMAT = "natscap_executor_writer"
TASK_BYTES = 16 << 20
"""The bytes that one task reads, about: few enough that small captures occupy all cores, too."""
HERE_BYTES = 256 << 20
"""The bytes of captures below which this process reads them itself."""
THREADS = 2
"""The number of threads that do so: only one of them decodes at a time."""
FILES_OPEN = 4
"""The number of days whose files a task has open at once."""
_TEMPORARY = "_temporary"
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The day of rows without a time (of blocks that could not be read), as Spark names it."""


class WrittenFile(NamedTuple):
    """A written file: its folder, its name in the temporary folder, its number of rows."""

    folder: str
    name: str
    rows: int


Reading = Callable[[int, int], None]
"""Called about once a second with the number of finished tasks, and of all."""
_DONE = "done-"


def write(
    spark: SparkSession,
    sources: Mapping[str, Mapping[str, str]],
    out: Path,
    reading: Reading = lambda done, tasks: None,
) -> dict[str, int]:
    """Write the tables `frames` (by days) and `items` under `out`; return the number of rows of each.

    sources: the options of the data source for both, with the same captures.  The tables do not exist yet.
    Raises CaptureError, Spark's own exceptions, and NatsproxyError where a file cannot be written.
    """
    options = parsed(sources)
    folder = out / "frames"
    temporary = folder / _TEMPORARY
    try:
        temporary.mkdir(parents=True)
        partitions = plan(options["frames"])
        with _watched(temporary, len(partitions), reading):
            if sum(each.size for each in partitions) < HERE_BYTES:
                files = _run_threads(partitions, options, temporary)
            else:
                files = _run_tasks(spark, sources, temporary)
        for name in options:
            (out / name).mkdir(exist_ok=True)
        for file in files:
            place = out / file.folder
            place.mkdir(exist_ok=True)
            (temporary / file.name).rename(place / file.name)
        shutil.rmtree(temporary)
    except OSError as error:
        raise local.write_error(folder, error) from None
    for name in options:
        local.finish(out / name)
    return {name: sum(file.rows for file in files if file.folder.split("/")[0] == name) for name in options}


def parsed(sources: Mapping[str, Mapping[str, str]]) -> dict[str, Options]:
    """Return the checked options of both tables."""
    return {name: parse({"partitionBytes": str(TASK_BYTES), **given}) for name, given in sources.items()}


def _run_threads(
    partitions: Iterable[InputPartition], options: Mapping[str, Options], folder: Path
) -> list[WrittenFile]:
    """Write the files of all partitions into a folder with threads of this process."""
    with ThreadPoolExecutor(THREADS) as pool:
        made = pool.map(lambda each: write_partition(each, options, folder), partitions)
        return [file for files in made for file in files]


def _run_tasks(
    spark: SparkSession, sources: Mapping[str, Mapping[str, str]], folder: Path
) -> list[WrittenFile]:
    """Write the files of all partitions into a folder with Spark tasks."""
    spark.dataSource.register(ExecutorSource)
    given = {"folder": str(folder), "sources": json.dumps(sources)}
    rows = spark.read.format(FORMAT).options(**given).load().collect()  # this runs the tasks
    return [WrittenFile(*row) for row in rows]


@contextmanager
def _watched(folder: Path, tasks: int, reading: Reading) -> Iterator[None]:
    """Report the number of finished tasks while others run."""
    ended = threading.Event()

    def count() -> None:
        while not ended.wait(1):
            reading(sum(1 for _ in folder.glob(f"{_DONE}*")), tasks)

    counting = threading.Thread(target=count)
    reading(0, tasks)
    counting.start()
    try:
        yield
    finally:
        ended.set()
        counting.join()


def write_partition(
    partition: InputPartition, options: Mapping[str, Options], folder: Path
) -> list[WrittenFile]:
    """Write a partition, frames by days and the items; return the files."""
    import pyarrow as pa

    from natsproxy.capture.columns.arrow import schema

    days, columns, items = DayFiles(folder), item_schema(), list[pa.RecordBatch]()
    wanted = [Wanted(schema(), options["frames"]), Wanted(columns, options["items"])]
    for place, batch in read_together(partition, wanted):
        (items.append if place else days.add)(batch)
    days.close(most=0)
    files = [*days.written, *_item_file(pa.Table.from_batches(items, columns), folder)]
    (folder / f"{_DONE}{uuid.uuid4()}").touch()
    return files


def _item_file(items: pa.Table, folder: Path) -> Iterator[WrittenFile]:
    """Write the items of a task, if there are any; yield the file."""
    if items.num_rows:
        name = local.part_name()
        try:
            local.write_file(items, folder / name)
        except OSError as error:
            raise local.write_error(folder.parent, error) from None
        yield WrittenFile("items", name, items.num_rows)


class ExecutorSource(DataSource):
    """A data source that writes files; each row that it returns is one `WrittenFile`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a `WrittenFile`."""
        return "folder string, name string, rows bigint"

    def reader(self, schema: StructType) -> ExecutorReader:
        """Return the reader whose tasks write."""
        return ExecutorReader(Path(self.options["folder"]), parsed(json.loads(self.options["sources"])))


class ExecutorReader(DataSourceReader):
    """A reader with the partitions of `natscap`, whose tasks write them to files in a folder."""

    def __init__(self, folder: Path, options: Mapping[str, Options]) -> None:
        self._folder = folder
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of all captures."""
        return plan(self._options["frames"])

    def read(self, partition: InputPartition) -> Iterator[WrittenFile]:
        """Write one partition; yield the files."""
        yield from write_partition(partition, self._options, self._folder)


class DayFiles:
    """The files of one task, by day.  Raises NatsproxyError where a write fails."""

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
            raise local.write_error(self._folder.parent, error) from None

    def _file(self, day: str) -> FramesFile:
        from natsproxy.capture.export.parquet_file import FramesFile

        if day not in self._open:
            self.close(most=FILES_OPEN - 1)
            name = local.part_name()
            self._open[day] = name, FramesFile(self._folder / name)
        return self._open[day][1]

    def close(self, *, most: int) -> None:
        """Close the oldest files until no more than `most` are open."""
        while len(self._open) > most:
            day = next(iter(self._open))
            name, file = self._open.pop(day)
            try:
                with file:  # leaving the context closes the file
                    pass
            except OSError as error:
                raise local.write_error(self._folder.parent, error) from None
            self.written.append(WrittenFile(f"frames/date={day}", name, file.rows))


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the frames of each day (UTC)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.floor_temporal(batch.column("ts"), unit="day").cast(pa.date32())
    found = days.unique().to_pylist()
    for day in found:
        rows = pc.is_null(days) if day is None else pc.equal(days, pa.scalar(day))
        yield _NO_DAY if day is None else day.isoformat(), batch if len(found) == 1 else batch.filter(rows)
