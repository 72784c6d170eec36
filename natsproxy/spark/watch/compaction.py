"""Few large files in the place of many small ones: neighbouring runs of a watch are merged.

A batch every ten seconds is 8,640 small files a day, each of which a reader opens.  So `FAN` neighbours of
one level become one run of the next, until a run has `FULL` bytes: each row is written again a few times at
most (once, where batches are large), and what is left of small runs is fewer than `FAN` of each level between
two runs of `FULL` bytes: those before a full run, and those of a lower level before a higher one, stay.

The merged run is written beside those that it holds, and takes their place in the ledger in one change.
Killed before that, it is a folder that nothing names, and is removed at the next start; killed after it,
the old ones are.  So no row is ever lost or there twice.  The old ones stay for `GRACE` seconds, for those
who read them; what is left of them goes when a watch ends or begins.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from natsproxy.spark.errors import translate_errors
from natsproxy.spark.jobs.store import SOURCES
from natsproxy.spark.watch.folder import Folder
from natsproxy.spark.watch.manifest import Manifest, stored
from natsproxy.spark.watch.watch_state import Run

FAN: Final = 16
FULL: Final = 128 << 20
"""About the size of a file, bytes."""
GRACE: Final = 600
"""How long a query that has begun may take to open its files, seconds."""


def due(runs: list[Run], fan: int = FAN, full: int = FULL) -> list[Run]:
    """Return the first neighbours of one level that are to be one run; none if there are too few."""
    group: list[Run] = []
    for run in runs:
        if run.bytes >= full:
            group = []
        elif group and group[0].level == run.level:
            group.append(run)
        else:
            group = [run]
        if len(group) == fan:
            return group
    return []


def merge(spark: SparkSession, folder: Folder, manifest: Manifest, source: str, runs: list[Run]) -> list[str]:
    """Write neighbouring runs as one; return the places that count no more."""
    first, last, size = runs[0].first, runs[-1].last, sum(run.bytes for run in runs)
    place = f"{source}/batches={first:08}-{last:08}"
    with translate_errors(f"{folder.root}/{place}"):
        rows = stored(spark, folder.root, source, [run.place for run in runs], SOURCES[source])
        writer = (
            rows.coalesce(max(1, size // FULL))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "static")
        )
        (writer.partitionBy("date") if source == "frames" else writer).parquet(f"{folder.root}/{place}")
        made = Run(
            first,
            last,
            place,
            runs[0].level + 1,
            folder.size(place),
            sum(run.rows for run in runs),
            min(run.t0 for run in runs),
            max(run.t1 for run in runs),
        )
        with manifest.change() as state:
            return state.merge(source, made)
