"""What a watch takes: the two streams of captures into `frames` and `items`, each batch in a folder of its
own.

Spark promises that a batch comes at least once, and that it is the same blocks each time: its plan is in the
checkpoint before it begins.  So a batch is written to the folder of its number, replacing what an attempt
that was killed left there, and counts when the ledger has it; one that the ledger has is not written again.
That makes it exactly once.

Spark's own file sink promises the same, by a list of its own beside the files.  But that list grows by every
file for ever, and none of them may be replaced: it rules out merging small files, and a batch every ten
seconds is 8,640 of them a day.

A stream that fails is started again, a few times, unless it is the captures that are wrong: on a busy machine
Spark gives up on its own Python processes after ten seconds.
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
from natsproxy.spark.jobs.analyze import ASKED, Progress, dated, read_stream
from natsproxy.spark.jobs.store import SOURCES
from natsproxy.spark.watch.folder import Folder
from natsproxy.spark.watch.manifest import Manifest
from natsproxy.spark.watch.watch_state import HOUR, Part, Run

POLL = 1
"""Seconds between two looks at whether to stop."""
FAILURES = 3
"""So many times a stream is started again without a batch in between."""


class Ingest:
    """One of the two streams: captures to one table."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        manifest: Manifest,
        name: str,
        captures: Sequence[str | Path],
        around: int,
        progress: Progress,
    ) -> None:
        self._spark, self._folder, self._manifest = spark, folder, manifest
        self._name, self._captures, self._around, self._progress = name, captures, around, progress
        self._place = f"{folder.root}/{name}"
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._one = Lock()
        self._rows: deque[int] = deque()

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

    def look(self, seconds: float) -> bool:
        """Wait a while; tell what has come; return whether it has ended.  Raises what has gone wrong."""
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
            self._tell()
        if over:
            self._query = None  # so that the next `go_on` begins it again
        return over

    def end(self) -> None:
        """Stop it, in the middle of a batch or not; a broken-off batch is taken again from its beginning."""
        query, self._query = self._query, None
        if query is not None:
            with translate_errors(self._place):
                query.stop()

    def _start(self, **trigger: Any) -> None:
        with translate_errors(self._place):
            rows = read_stream(self._spark, self._captures, **ASKED[self._name])
            rows = dated(rows) if self._name == "frames" else rows
            writer = rows.writeStream.option(
                "checkpointLocation", f"{self._folder.root}/_checkpoint/{self._name}"
            )
            self._query = writer.foreachBatch(self.take).trigger(**trigger).start()

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write a batch; Spark calls it, in a thread of its own."""
        with self._one:  # a query that was stopped may still be in here when the next one begins
            with self._manifest.look() as state:
                taken = state.taken[self._name]
            if batch == taken:
                return
            if batch != taken + 1:
                text = f"batch {batch} comes after {taken}: _checkpoint is not of these tables"
                raise NatsproxyError(f"{self._place}: {text}, choose another folder")
            place = f"{self._name}/batches={batch:08}-{batch:08}"
            writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static")
            writer = writer.partitionBy("date") if self._name == "frames" else writer
            writer.parquet(f"{self._folder.root}/{place}")
            count, parts = self._parts(rows.sparkSession, place)
            run = self._run(place, batch, count, parts) if count else None
            if run is None:
                self._folder.remove(place)
            with self._manifest.change() as state:
                state.add(self._name, batch, run, parts, self._around, time.time_ns())
            self._rows.append(count)

    def _parts(self, spark: SparkSession, place: str) -> tuple[int, list[Part]]:
        """Return how many rows were written, and the hours of those that have a time (damage has none)."""
        stored = spark.read.schema(SOURCES[self._name]).parquet(f"{self._folder.root}/{place}")
        hours = stored.groupBy(F.expr(f"t_ns DIV {HOUR}").alias("hour")).agg(
            F.count("*").alias("rows"), F.min("t_ns").alias("first"), F.max("t_ns").alias("last")
        )
        found = [(row["rows"], Part(row["hour"], row["first"], row["last"])) for row in hours.collect()]
        return sum(rows for rows, _ in found), [part for _, part in found if part.hour is not None]

    def _run(self, place: str, batch: int, rows: int, parts: list[Part]) -> Run:
        t0, t1 = min((part.first for part in parts), default=0), max((part.last for part in parts), default=0)
        return Run(batch, batch, place, level=0, bytes=self._folder.size(place), rows=rows, t0=t0, t1=t1)

    def _tell(self) -> None:
        while self._rows:
            self._failures = 0
            rows = self._rows.popleft()
            if rows:
                self._progress(self._name, rows)
