"""The store: the folder of an analysis, its tables, and the list of the complete ones.

    DIR/frames/date=...   one row per frame, by day
    DIR/items             one row per item that is not a frame: opens, closes, firings, gaps
    DIR/<table>           the tables that derive from these two
    DIR/analysis          the list of the complete tables
    DIR/_checkpoint       of a watch: the progress of its streams

Spark writes a table to a temporary folder and moves it in place at the end; `_SUCCESS` in it marks it as
complete.  That holds for each table alone.  An interrupted analysis could still leave new tables beside those
of an earlier run, so `analysis` lists the tables that belong together: it is emptied before any
table is written, and written last.  A table that it does not list is not read here.

The list is a table like the others, which Spark can write, so it works the same on every file system, on
object stores (where moving a folder would mean copying it) and through Connect (where the client may not see
the files).  On a file system that this process reaches (no URL, not through Connect), the tables of the
earlier run are removed at once, so that other readers do not take them for new ones, a lock keeps a second
run out, and whatever needs no Spark is done without it (`local.py`).  A folder that holds other files is
never changed.

A watch writes the same tables continuously, and keeps its list itself (`manifest.py`): of `frames` and
`items` it names the valid folders, of the others the valid hours.  Both kinds of list are read here, by the
same name.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.spark.errors import translate_errors
from natsproxy.spark.sail import is_sail
from natsproxy.spark.schema import FRAMES, SOURCES, TABLES
from natsproxy.spark.storage import executor_writer, local, manifest
from natsproxy.spark.storage.parquet import dated, no_rows, write_folder

LIST = manifest.LIST
_LIST_COLUMNS = {"table": "string", "rows": "bigint", "written": "string"}
KEPT = ("_pairs", "_exchanges")
"""The folders of cached rows, while tables are written."""
FEW = 100_000
"""The number of frames below which this process collects and writes the rows of a table."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
Written = Literal["batch", "stream"]


def check_place(out: str, *, sail: bool) -> None:
    """Raise ConfigError for a folder whose name Spark takes for a pattern; with Sail, for a URL.

    Sail's small tables are written here, as files.
    """
    if any(mark in out for mark in _WILDCARDS):
        raise ConfigError(f"{out}: choose another folder, Spark takes {_WILDCARDS} for wildcards")
    if sail and _URL.match(out):
        raise ConfigError(f"{out}: the engine sail writes into a folder of this machine: give its path")


class Store:
    """The tables under `out`, a folder or a URL that Spark can write to.

    Raises ConfigError as `check_place` does.
    """

    def __init__(self, spark: SparkSession, out: str | Path) -> None:
        self._spark = spark
        self.out = str(out).rstrip("/") or "/"
        check_place(self.out, sail=is_sail(spark))
        self._local_files = not _URL.match(self.out) and _reads_files(spark)
        self.local_tasks = self._local_files and _is_local(spark)
        self.few = False
        self._rows: dict[str, int | None] = {}

    def place(self, name: str) -> str:
        """Return the path of a table."""
        return f"{self.out}/{name}"

    @contextmanager
    def locked(self, written: Written) -> Iterator[None]:
        """Lock the folder while it is written.

        Raises NatsproxyError where it cannot be written, another run is writing, or the other kind of
        analysis (batch or stream) has been written there.
        """
        with local.locked(self.out) if self._local_files else nullcontext():
            for other in {row["written"] for row in self.listed().values()} - {written}:
                raise NatsproxyError(f"{self.out} holds the tables of {_KIND[other]}: choose another folder")
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder for a batch analysis; no table in it counts as complete until `finish`."""
        with self.locked("batch"):
            if self._local_files:
                local.remove_tables(self.out, {LIST, *TABLES, *SOURCES, *KEPT})
            self._rows = {}
            self.finish()
            yield

    def write(self, name: str, rows: DataFrame) -> int:
        """Write a complete table; return the number of its rows."""
        self._rows[name] = count = self._write(name, rows)
        return count

    def _write(self, name: str, rows: DataFrame) -> int:
        place = self.place(name)
        with translate_errors(place):
            return self._write_folder(name, rows, place)

    def _write_folder(self, name: str, rows: DataFrame, place: str) -> int:
        count = None
        if not (self.few and self._local_files):
            write_folder(name, rows, place)
            if not self._local_files:
                return self._spark.read.schema(rows.schema).parquet(place).count()
            count = local.count(place)
        if count is None:  # few rows; or none, and Sail has written no file
            table = rows.toArrow()
            local.write_table(table, place)
            count = table.num_rows
        return count

    def write_empty(self, name: str) -> int:
        """Write a table that has no rows, without Spark; return their number.  Only with `local_tasks`."""
        local.write_table(no_rows(TABLES[name]), self.place(name))
        self._rows[name] = 0
        return 0

    def values(self, source: str, column: str) -> set[str]:
        """Return the distinct texts in a column of `frames` or `items`.  Only with `local_tasks`."""
        return local.values(self.place(source), column)

    def beginnings(self, source: str, column: str, most: int, without: str) -> set[str] | None:
        """Return the first tokens of subjects, see `local.beginnings`.  Only with `local_tasks`."""
        return local.beginnings(self.place(source), column, most, without)

    def write_on_executors(
        self,
        sources: Mapping[str, Mapping[str, str]],
        reading: executor_writer.Reading = lambda done, tasks: None,
    ) -> dict[str, int]:
        """Write the tables `frames` and `items` without Spark's writer; return their row counts.

        sources: the options of the data source for both.  reading: see `executor_writer.py`.  Allowed only
        with `local_tasks`: the tasks write files of this machine.
        """
        with translate_errors(self.place("frames")):
            written = executor_writer.write(self._spark, sources, Path(self.out), reading)
        self._rows |= written
        self.few = written["frames"] < FEW
        return written

    @contextmanager
    def kept(self, name: str, rows: DataFrame) -> Iterator[DataFrame]:
        """Cache rows that are used several times; name: one of `KEPT`."""
        if not self._local_files:
            rows = rows.persist()
            yield rows
            rows.unpersist()
            return
        try:
            self._write(name, rows)
            yield self._spark.read.schema(rows.schema).parquet(self.place(name))
        finally:
            shutil.rmtree(self.place(name), ignore_errors=True)

    def finish(self) -> None:
        """Write the list: the tables written so far are complete and belong together."""
        rows = [(name, count, "batch") for name, count in {LIST: None, **self._rows}.items()]
        if self._local_files:
            local.write_list((dict(zip(_LIST_COLUMNS, row, strict=True)) for row in rows), self.place(LIST))
            return
        with translate_errors(self.place(LIST)):
            listed = self._spark.createDataFrame(rows, ", ".join(map(" ".join, _LIST_COLUMNS.items())))
            listed.coalesce(1).write.mode("overwrite").json(self.place(LIST))

    def read(self, name: str) -> DataFrame:
        """Return a complete table.  Raises NatsproxyError for any other."""
        row = self.listed().get(name)
        if row is None:
            raise NatsproxyError(f"there is no complete table {name} in {self.out}: run the analysis (again)")
        return self.read_listed(row)

    def read_listed(self, row: Mapping[str, Any]) -> DataFrame:
        """Return the table that a row of `listed` names, as it was when the list was read."""
        name = row["table"]
        schema = SOURCES.get(name) or TABLES[name]
        if row["written"] == "stream":
            return manifest.read(self._spark, self.out, row, schema)
        return self._parquet(name, schema)

    def source(self, name: str) -> DataFrame:
        """Return `frames` or `items` while a batch analysis still writes the other tables."""
        return self._parquet(name, SOURCES[name])

    def _parquet(self, name: str, schema: str) -> DataFrame:
        place = self.place(name)
        if not is_sail(self._spark):
            return self._spark.read.schema(schema).parquet(place)
        if not Path(place).exists():
            raise NatsproxyError(f"{place} is missing: run the analysis again")
        if name == "frames":  # Sail does not take the name of the folder for rows without a day for a date
            return dated(self._spark.read.schema(FRAMES).parquet(place))
        return self._spark.read.schema(schema).parquet(place)

    def listed(self) -> dict[str, Mapping[str, Any]]:
        """Return the rows of the list, by table: the complete ones (see `manifest.py`)."""
        if self._local_files:
            return {row["table"]: row for row in manifest.newest(local.read_list(self.place(LIST)))}
        with translate_errors(self.place(LIST)):
            try:
                # A watch removes old versions of its list; the newest stays for a while.
                reader = self._spark.read.schema(manifest.COLUMNS).option("ignoreMissingFiles", "true")
                rows = reader.json(self.place(LIST)).collect()
            except AnalysisException as error:
                if error.getCondition() != "PATH_NOT_FOUND":
                    raise
                return {}
        return {row["table"]: row for row in manifest.newest(row.asDict() for row in rows)}


def _reads_files(spark: SparkSession) -> bool:
    """Return True if a path without a scheme is local both to Spark and to this process."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return is_sail(spark)
    return str(spark._jsc.hadoopConfiguration().get("fs.defaultFS")).startswith("file:")


def _is_local(spark: SparkSession) -> bool:
    """Return True where the tasks run on this machine."""
    return is_sail(spark) or str(spark.conf.get("spark.master")).startswith("local")


_WILDCARDS = "*?[{"
_KIND = {"batch": "an analysis that was not watching", "stream": "a watch"}
