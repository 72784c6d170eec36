"""Ingest: the two streams of captures into `frames` and `items`, each batch in a folder of its own.

Spark promises that a batch comes at least once, and that it has the same blocks each time: its plan is in the
checkpoint before it begins.  So a batch is written to the folder of its number, in the place of files that a
killed attempt left there, and counts when the state lists it; a batch that the state lists is not written
again.  That makes it exactly once.

Spark's own file sink promises the same, by a list of its own beside the files.  But that list grows by every
file for ever, and none of the files may be replaced: it rules out merging small files, and a batch every ten
seconds is 8,640 of them a day.

A stream that fails is started again, a few times, unless the captures are wrong: on a busy machine Spark
gives up on its own Python processes after ten seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from natsproxy.errors import CaptureError, ConfigError, NatsproxyError
from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.analyze import SOURCE_OPTIONS, Progress, read_stream
from natsproxy.spark.schema import SOURCES
from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.manifest import Manifest
from natsproxy.spark.storage.parquet import dated, write_folder
from natsproxy.spark.storage.watch_state import BatchHour, BatchRange
from natsproxy.spark.tables.hours import HOUR
from natsproxy.spark.tables.losses import losses

POLL = 1
"""Seconds between two checks whether to stop."""
FAILURES = 3
"""The number of times a stream is restarted without a batch in between."""


Lost = Callable[[list[str]], None]
"""Called with clauses that name segments which were deleted before they were read."""


class Ingest:
    """One of the two streams: captures to one table."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        manifest: Manifest,
        name: str,
        captures: Sequence[str | Path],
        margin: int,
        progress: Progress,
        lost: Lost = lambda clauses: None,
    ) -> None:
        self._spark, self._folder, self._manifest = spark, folder, manifest
        self._name, self._captures, self._margin, self._progress = name, captures, margin, progress
        self._lost = lost
        self._place = f"{folder.root}/{name}"
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._batch_lock = Lock()
        # From the thread of the batches to the one of the loop.
        self._new_rows: deque[int] = deque()
        self._new_losses: deque[list[str]] = deque()

    def start(self, every: float) -> None:
        """Start the query, unless it runs: a batch every so many seconds."""
        if self._query is None:
            self._start(processingTime=f"{round(every * 1000)} milliseconds")

    def catch_up(self, stop: Callable[[], bool]) -> None:
        """Read the blocks that are there now, then stop."""
        try:
            over = False
            while not over:
                if self._query is None:
                    self._start(availableNow=True)
                stop()  # it raises where the watch must end at once
                over = self.poll(POLL)
        finally:
            self.end()

    def poll(self, seconds: float) -> bool:
        """Wait a while and report new rows; return True if the query has ended.

        A query that failed is forgotten, so that the next `start` begins it again.  Raises CaptureError and
        ConfigError at once, NatsproxyError after `FAILURES` failures without a batch.
        """
        assert self._query is not None
        try:
            with translate_errors(self._place):
                over = bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]  # or fractions
        except (CaptureError, ConfigError):
            raise
        except NatsproxyError:
            self._failures += 1
            if self._failures > FAILURES:
                raise
            self._query = None
            return False
        finally:
            self._report()
        if over:
            self._query = None  # so that the next `start` begins it again
        return over

    def end(self) -> None:
        """Stop the query, even within a batch: that batch is read again from its beginning."""
        query, self._query = self._query, None
        if query is not None:
            with translate_errors(self._place):
                query.stop()

    def _start(self, **trigger: Any) -> None:
        with translate_errors(self._place):
            rows = read_stream(self._spark, self._captures, **SOURCE_OPTIONS[self._name])
            rows = dated(rows) if self._name == "frames" else rows
            writer = rows.writeStream.option(
                "checkpointLocation", f"{self._folder.root}/_checkpoint/{self._name}"
            )
            self._query = writer.foreachBatch(self.take_batch).trigger(**trigger).start()

    def take_batch(self, rows: DataFrame, batch: int) -> None:
        """Write a batch unless it has been written; called by Spark, in a thread of its own."""
        with self._batch_lock:  # a query that was stopped may still be in here when the next one begins
            with self._manifest.current() as state:
                taken = state.taken[self._name]
            if batch == taken:
                return
            if batch != taken + 1:
                text = f"batch {batch} comes after {taken}: _checkpoint is not of these tables"
                raise NatsproxyError(f"{self._place}: {text}, choose another folder")
            place = f"{self._name}/batches={batch:08}-{batch:08}"
            write_folder(self._name, rows, f"{self._folder.root}/{place}")
            count, hours = self._count(rows.sparkSession, place)
            gone = losses(self._name, self._stored(rows.sparkSession, place)) if count else []
            written = self._range(place, batch, count, hours) if count else None
            if written is None:
                self._folder.remove(place)
            with self._manifest.change() as state:
                state.add_batch(self._name, batch, written, hours, self._margin, time.time_ns())
            self._new_rows.append(count)
            if gone:
                self._new_losses.append(gone)

    def _stored(self, spark: SparkSession, place: str) -> DataFrame:
        return spark.read.schema(SOURCES[self._name]).parquet(f"{self._folder.root}/{place}")

    def _count(self, spark: SparkSession, place: str) -> tuple[int, list[BatchHour]]:
        """Return the number of written rows, and the hours of those that have a time (damage has none)."""
        hours = (
            self._stored(spark, place)
            .groupBy(F.expr(f"t_ns DIV {HOUR}").alias("hour"))
            .agg(F.count("*").alias("rows"), F.min("t_ns").alias("first"), F.max("t_ns").alias("last"))
        )
        found = [(row["rows"], BatchHour(row["hour"], row["first"], row["last"])) for row in hours.collect()]
        return sum(rows for rows, _ in found), [hour for _, hour in found if hour.hour is not None]

    def _range(self, place: str, batch: int, rows: int, hours: list[BatchHour]) -> BatchRange:
        t0, t1 = min((hour.first for hour in hours), default=0), max((hour.last for hour in hours), default=0)
        size = self._folder.size(place)
        return BatchRange(batch, batch, place, level=0, bytes=size, rows=rows, t0=t0, t1=t1)

    def _report(self) -> None:
        """Report the rows and the losses of new batches, in the thread of the loop."""
        while self._new_rows:
            self._failures = 0
            rows = self._new_rows.popleft()
            if rows:
                self._progress(self._name, rows)
        while self._new_losses:
            self._lost(self._new_losses.popleft())
