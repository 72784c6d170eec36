"""The store: the folder of an analysis, its tables, and the list of those that are whole.

    DIR/frames/date=...   one row per frame, by day
    DIR/items             one row per item that is no frame: opens, closes, firings, gaps
    DIR/<table>           the tables that derive from these two
    DIR/analysis          the list of the whole tables
    DIR/_checkpoint       of a watch: the progress of its streams

Spark writes a table aside and moves it in place when it is done; `_SUCCESS` in it says that this was
finished.  That is true of each table alone.  An analysis that was broken off could still leave new tables
beside those of an earlier run, so `analysis` lists the tables that belong together: it is emptied before any
table is written, and written last.  A table that it does not list is not read here.

The list is a table like the others, written by Spark, so it works the same on every file system, on object
stores (where moving a folder would mean copying it) and through Connect (where the client may not see the
files).  On a file system that this process reaches (no URL, not through Connect), the tables of the earlier
run are removed at once, so that other readers do not take them for new ones, and a lock keeps a second run
out.  A folder that holds other files is never touched.

A watch writes the same tables while it goes on, and keeps its list itself (`manifest.py`): of `frames` and
`items` it names the folders that count, of the others the hours.  Both kinds of list are read here, by the
same name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.spark.errors import translate_errors
from natsproxy.spark.schema import SOURCES, TABLES
from natsproxy.spark.storage import executor_writer, manifest
from natsproxy.spark.storage.parquet import write_folder

LIST = manifest.LIST
_LIST_COLUMNS = "table string, rows bigint, written string"
_SPARK_NAMES = ("part-", "_", ".", "date=", "hour=")
"""The beginnings of all names that Spark writes into a table."""

Written = Literal["batch", "stream"]


class Store:
    """The tables under `out`, a folder or a URL that Spark can write to.

    Raises ConfigError for a folder whose name Spark takes for a pattern.
    """

    def __init__(self, spark: SparkSession, out: str | Path) -> None:
        self._spark = spark
        self.out = str(out).rstrip("/") or "/"
        if any(mark in self.out for mark in _WILDCARDS):
            raise ConfigError(f"{self.out}: no folder for tables, Spark takes {_WILDCARDS} for wildcards")
        self._local_files = not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", self.out) and _reads_files(spark)
        self.local_tasks = self._local_files and str(spark.conf.get("spark.master")).startswith("local")
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
        with _locked(self.out) if self._local_files else nullcontext():
            for other in {row["written"] for row in self.listed().values()} - {written}:
                raise NatsproxyError(f"{self.out} holds the tables of {_KIND[other]}: choose another folder")
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder for a batch analysis; no table in it counts as whole until `finish`."""
        with self.locked("batch"):
            if self._local_files:
                _remove_tables(self.out, {LIST, *TABLES, *SOURCES})
            self._rows = {}
            self.finish()
            yield

    def write(self, name: str, rows: DataFrame) -> int:
        """Write a whole table; return the number of its rows."""
        with translate_errors(self.place(name)):
            write_folder(name, rows, self.place(name))
            count = self._spark.read.schema(rows.schema).parquet(self.place(name)).count()
        self._rows[name] = count
        return count

    def write_on_executors(self, source: Mapping[str, str]) -> int:
        """Write the whole table `frames` by Spark's tasks themselves; return the number of its rows.

        source: the options of the data source.  Allowed only with `local_tasks`: the tasks write files of
        this machine.
        """
        with translate_errors(self.place("frames")):
            self._rows["frames"] = count = executor_writer.write(
                self._spark, source, Path(self.place("frames"))
            )
        return count

    def finish(self) -> None:
        """Write the list: the tables written so far are whole and belong together."""
        rows = [(name, count, "batch") for name, count in {LIST: None, **self._rows}.items()]
        with translate_errors(self.place(LIST)):
            listed = self._spark.createDataFrame(rows, _LIST_COLUMNS).coalesce(1)
            listed.write.mode("overwrite").json(self.place(LIST))

    def read(self, name: str) -> DataFrame:
        """Return a table that is whole.  Raises NatsproxyError for one that is not."""
        row = self.listed().get(name)
        if row is None:
            raise NatsproxyError(f"there is no whole table {name} in {self.out}: run the analysis (again)")
        return self.of(row)

    def of(self, row: Row) -> DataFrame:
        """Return the table that a row of `listed` names, as it was when the list was read."""
        name = row["table"]
        schema = SOURCES.get(name) or TABLES[name]
        if row["written"] == "stream":
            return manifest.read(self._spark, self.out, row, schema)
        return self._spark.read.schema(schema).parquet(self.place(name))

    def source(self, name: str) -> DataFrame:
        """Return `frames` or `items` while a batch analysis still writes the other tables."""
        return self._spark.read.schema(SOURCES[name]).parquet(self.place(name))

    def listed(self) -> dict[str, Row]:
        """Return the rows of the list, by table: those that are whole (see `manifest.py`)."""
        with translate_errors(self.place(LIST)):
            try:
                # A watch removes old versions of its list; the newest stays for a while.
                reader = self._spark.read.schema(manifest.COLUMNS).option("ignoreMissingFiles", "true")
                rows = reader.json(self.place(LIST)).collect()
            except AnalysisException as error:
                if error.getCondition() != "PATH_NOT_FOUND":
                    raise
                return {}
        return {row["table"]: row for row in manifest.newest(rows)}


def _reads_files(spark: SparkSession) -> bool:
    """Return True where Spark and this process both take a path without a scheme for one of this machine."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return False
    return str(spark._jsc.hadoopConfiguration().get("fs.defaultFS")).startswith("file:")


_WILDCARDS = "*?[{"
_KIND = {"batch": "an analysis that was not watching", "stream": "a watch"}


@contextmanager
def _locked(out: str) -> Iterator[None]:
    """Make a folder and lock it; the lock ends with this process, even with one that is killed."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise NatsproxyError(f"{out}: cannot write there: {error.strerror}") from None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise NatsproxyError(f"{out}: another analysis is writing there") from None
            # else a network file system without such locks: there a second run is not kept out
        yield
    finally:
        os.close(folder)


def _remove_tables(out: str, names: Iterable[str]) -> None:
    """Remove the tables of an earlier run.  Raises NatsproxyError for a folder that is no table."""
    found = [folder for folder in (Path(out, name) for name in sorted(names)) if folder.exists()]
    for folder in found:
        if not folder.is_dir() or not all(path.name.startswith(_SPARK_NAMES) for path in folder.iterdir()):
            raise NatsproxyError(f"{folder} is no table of an analysis: choose another folder")
    for folder in found:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise NatsproxyError(f"{folder}: cannot remove it: {error.strerror}") from None
