"""The job that goes on: captures to tables while they are written.

Two streams, `frames` and `items`, take what recorders write, block by block, each exactly once, however often
the job is killed: how far it has got is in `DIR/_checkpoint`, which files of a table count is in the table's
`_spark_metadata` (read them with Spark; other readers also see what a killed batch left).

When it is asked to stop, it takes what is there at that moment, writes the tables that derive from frames and
items, and ends.  Killed before that, it has lost nothing but those: they are written at the next stop, always
from all there is.

A stream that fails is started again, a few times, unless it is the captures that are wrong: on a busy machine
Spark gives up on its own Python processes after ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from natsproxy.errors import CaptureError, ConfigError, NatsproxyError
from natsproxy.spark.jobs import ASKED, Progress, chosen, dated, read_stream, write_derived
from natsproxy.spark.store import SOURCES, Store
from natsproxy.spark.tables import TABLES
from natsproxy.spark.trouble import told

POLL = 1
"""Seconds between two looks at the streams, and at whether to stop."""
FAILURES = 3
"""So many times a stream is started again without a batch in between."""


def watch(
    spark: SparkSession,
    captures: Sequence[str | Path],
    out: str | Path,
    tables: Iterable[str] = TABLES,
    *,
    every: float = 10.0,
    stop: Callable[[], bool],
    progress: Progress = lambda table, rows: None,
) -> None:
    """Write tables under `out` from captures that grow, until `stop()` is true.

    captures: as for `analyze`; a folder may still be empty.  every: seconds between two batches.  stop: asked
    every second; it may raise to end at once, which loses nothing.  progress: called with the rows of each
    batch of `frames` and `items`, and at the end with those of each table.  Raises as `analyze` does.
    """
    wanted = chosen(tables)
    store = Store(spark, out)
    with store.writing("stream"):
        streams = {name: _Stream(spark, store, name, captures, progress) for name in SOURCES}
        try:
            while not stop():
                for one in streams.values():
                    one.go_on(every)
                    one.look(POLL / len(streams))
        finally:
            for one in streams.values():
                one.end()
        for one in streams.values():
            one.catch_up(stop)
        write_derived(store, wanted, progress)
        store.finish("stream")


class _Stream:
    """One of the two streams: captures to one table."""

    def __init__(
        self, spark: SparkSession, store: Store, name: str, captures: Sequence[str | Path], progress: Progress
    ) -> None:
        self._name = name
        self._place = store.place(name)
        self._checkpoint = f"{store.out}/_checkpoint/{name}"
        self._progress = progress
        self._spark = spark
        self._captures = captures
        self._query: StreamingQuery | None = None
        self._batch = -1
        self._failures = 0

    def go_on(self, every: float) -> None:
        """Take what comes, a batch every so many seconds."""
        if self._query is None:
            self._start(processingTime=f"{round(every * 1000)} milliseconds")

    def catch_up(self, stop: Callable[[], bool]) -> None:
        """Take what is there now, and end."""
        try:
            over = False
            while not over:
                if self._query is None:
                    self._start(availableNow=True)
                stop()  # which raises when it is asked to end at once
                over = self.look(POLL)
        finally:
            self.end()

    def _start(self, **trigger: Any) -> None:
        with told(self._place):
            rows = read_stream(self._spark, self._captures, **ASKED[self._name])
            rows = dated(rows) if self._name == "frames" else rows
            writer = rows.writeStream.format("parquet").option("checkpointLocation", self._checkpoint)
            writer = writer.partitionBy("date") if self._name == "frames" else writer
            self._query = writer.trigger(**trigger).start(self._place)

    def look(self, seconds: float) -> bool:
        """Wait a while; tell what has come; return whether it has ended.  Raises what has gone wrong."""
        assert self._query is not None
        try:
            with told(self._place):
                over = bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]  # takes fractions
                last = self._query.lastProgress
                if last is not None and last["batchId"] > self._batch:
                    self._tell(self._query.recentProgress)
        except (CaptureError, ConfigError):
            raise
        except NatsproxyError:
            self._failures += 1
            if self._failures > FAILURES:
                raise
            self._query = None
            return False
        return over

    def _tell(self, batches: Iterable[Any]) -> None:
        for found in batches:
            batch, rows = found["batchId"], found["numInputRows"]
            if batch > self._batch:
                self._batch, self._failures = batch, 0
                if rows:
                    self._progress(self._name, rows)

    def end(self) -> None:
        """Stop it, in the middle of a batch or not; a broken-off batch is taken again from its beginning."""
        query, self._query = self._query, None
        if query is not None:
            with told(self._place):
                query.stop()
