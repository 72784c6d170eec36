"""Compaction: neighbouring batch ranges of a watch are merged, so that small files become large ones.

A batch every ten seconds is 8,640 small files a day, each of which a reader opens.  So `FAN` neighbours of
one level become one range of the next level, until a range has `FULL` bytes.  Each row is written again a few
times at most (once, where batches are large).  Between two full ranges, fewer than `FAN` small ones of each
level stay: those before a full range, and those of a lower level before a higher one.

The merged range is written beside those that it holds, and takes their place in the state in one change.  If
the watch is killed before that, the merged folder is one that no list names, and the next start removes it;
if it is killed after that, the next start removes the old folders.  So no row is ever lost or counted twice.
The old folders stay for `GRACE` seconds, for queries that read them; the rest of them is removed when a watch
ends or begins.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from natsproxy.spark.errors import translate_errors
from natsproxy.spark.schema import SOURCES
from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.manifest import Manifest
from natsproxy.spark.storage.parquet import read_folders, write_folder
from natsproxy.spark.storage.watch_state import BatchRange

FAN: Final = 16
"""The number of ranges that are merged into one."""
FULL: Final = 128 << 20
"""About the size of a file, bytes."""
GRACE: Final = 600
"""Seconds that a running query has to open its files."""


def ranges_to_merge(ranges: list[BatchRange], fan: int = FAN, full: int = FULL) -> list[BatchRange]:
    """Return the first `fan` neighbours of one level that are not full; none if there are too few."""
    group: list[BatchRange] = []
    for one in ranges:
        if one.bytes >= full:
            group = []
        elif group and group[0].level == one.level:
            group.append(one)
        else:
            group = [one]
        if len(group) == fan:
            return group
    return []


def merge(
    spark: SparkSession, folder: Folder, manifest: Manifest, source: str, ranges: list[BatchRange]
) -> list[str]:
    """Write neighbouring ranges as one; return the folders that are obsolete."""
    first, last, size = ranges[0].first, ranges[-1].last, sum(one.bytes for one in ranges)
    place = f"{source}/batches={first:08}-{last:08}"
    with translate_errors(f"{folder.root}/{place}"):
        rows = read_folders(spark, folder.root, source, [one.place for one in ranges], SOURCES[source])
        write_folder(source, rows.coalesce(max(1, size // FULL)), f"{folder.root}/{place}")
        merged = BatchRange(
            first,
            last,
            place,
            ranges[0].level + 1,
            folder.size(place),
            sum(one.rows for one in ranges),
            min(one.t0 for one in ranges),
            max(one.t1 for one in ranges),
        )
        with manifest.change() as state:
            return state.merge(source, merged)
