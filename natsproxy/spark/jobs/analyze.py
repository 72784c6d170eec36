"""The job `analyze`: captures to tables of Parquet.  The same code runs on a laptop and on a cluster.

`frames` and `items` are written first, all other tables derive from those, except `findings`, whose checks
read the captures.  In a session of this machine
both come of one reading of the captures; elsewhere each is a read of Spark's own.  A second run replaces the
tables of the first; tables that an interrupted run left are never taken for whole (see
`natsproxy/spark/storage/store.py`).

    from natsproxy.spark.session import open_session
    from natsproxy.spark.jobs.analyze import analyze, latencies

    spark = open_session()
    analyze(spark, ["traffic/"], "tables")
    latencies(spark, "tables")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from natsproxy.errors import ConfigError
from natsproxy.spark.errors import translate_errors
from natsproxy.spark.sail import is_sail, percentile
from natsproxy.spark.schema import SOURCES
from natsproxy.spark.schema import TABLES as COLUMNS
from natsproxy.spark.source.arrow_batches import arrow_schema
from natsproxy.spark.source.data_source import NatscapDataSource
from natsproxy.spark.source.options import parse
from natsproxy.spark.source.statements import table_of
from natsproxy.spark.storage.executor_writer import Reading
from natsproxy.spark.storage.parquet import dated
from natsproxy.spark.storage.store import KEPT, Store
from natsproxy.spark.tables import FROM, PAYLOAD_BYTES, RARE, TABLES, USUAL, derive, exchanges
from natsproxy.spark.tables.base import ACK
from natsproxy.spark.tables.folding import message_folds
from natsproxy.spark.tables.messages import subjects
from natsproxy.spark.tables.pairing import of_exchanges

Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)
Progress = Callable[[str, int], None]
"""Called with a table and its number of rows, each time when a table or a batch is written."""
SOURCE_OPTIONS = {
    "frames": {"payload": str(PAYLOAD_BYTES), "mode": "PERMISSIVE"},
    "items": {"what": "items", "mode": "PERMISSIVE"},
}
"""The options of the data source for `frames` and `items`."""

BEGINNINGS_MAX = 100
"""The number of first tokens of reply subjects up to which frames are filtered by them."""
AT_ONCE = 4
"""The number of tables computed at once: planning, and the ends of jobs, leave cores idle."""


def register(spark: SparkSession) -> None:
    """Register `format("natscap")` where Spark does not find it by itself.

    Spark finds it in an installed natsproxy (`pyspark_natsproxy`).  An editable install needs this call once
    per session, and so does a cluster whose driver does not look for sources.  The class goes to the workers
    by name: natsproxy must be installed there.
    """
    spark.dataSource.register(NatscapDataSource)


def read(spark: SparkSession, captures: Sequence[str | Path], **options: str) -> DataFrame:
    """Return captures as one DataFrame, one row per frame.

    captures: files, folders of segments, globs, or URLs of object stores (`natsproxy/spark/source/paths.py`).
    options: those of `natsproxy/spark/source/options.py` by name, as text: `payload="-1"`, `op="PUB,HPUB"`,
    `what="items"`.  Raises ConfigError for an option that there is not, or that is wrong.  No capture is read
    before the DataFrame is used; then Spark raises errors of the captures as its own exceptions.
    """
    return _reading(spark, spark.read, captures, options).load()


def read_stream(spark: SparkSession, captures: Sequence[str | Path], **options: str) -> DataFrame:
    """Return captures as one streaming DataFrame, which continues with frames that are written later."""
    return _reading(spark, spark.readStream, captures, options).load()


def check(
    spark: SparkSession, captures: Sequence[str | Path], *, here: bool = False, **options: str
) -> DataFrame:
    """Return the statements of `natsproxy check` on captures, for the table `findings`.

    here: they are made in this process, else by Spark's tasks, one for each recording.  Spark's Python
    processes take longer to start than the checks take for a small capture.  With Sail it is always this
    process: a data source of Sail's has no column of arrays.
    """
    if not here and not is_sail(spark):
        return read(spark, captures, what="findings", **options)
    schema = StructType.fromDDL(COLUMNS["findings"])
    assert isinstance(schema, StructType)
    given = parse({**options, "what": "findings", "paths": _list(captures)})
    return spark.createDataFrame(table_of(given, arrow_schema(schema)), schema)


def _reading(
    spark: SparkSession, reader: Reader, captures: Sequence[str | Path], options: Mapping[str, str]
) -> Reader:
    given = {**options, "paths": _list(captures)}
    parse(given)
    register(spark)
    return reader.format("natscap").options(**given)


def analyze(
    spark: SparkSession,
    captures: Sequence[str | Path],
    out: str | Path,
    tables: Iterable[str] = USUAL,
    progress: Progress = lambda table, rows: None,
    survey: str | None = None,
    reading: Reading = lambda done, tasks: None,
) -> None:
    """Write tables under `out`, one folder of Parquet each; `frames` and `items` always.

    out: a folder, or a URL that Spark can write to.  The columns of each table stand in
    `natsproxy/spark/schema.py`, their meaning with its function in `natsproxy/spark/tables/`.  progress:
    called with each table when it is written, and the number of its rows.  survey: a file with the survey of
    the captures (`natsproxy/spark/source/survey.py`), where the caller has made it.  reading:
    called while captures are read, with the tasks that have ended and the number of all.  Raises, in one
    sentence each, ConfigError for an unknown table, CaptureError for captures that cannot be read,
    NatsproxyError where the tables cannot be written.
    """
    wanted = chosen(tables)
    store = Store(spark, out)
    with store.writing():
        made = {} if survey is None else {"survey": survey}
        if store.local_tasks:
            paths = _list(captures)
            sources = {name: {**given, **made, "paths": paths} for name, given in SOURCE_OPTIONS.items()}
            written = store.write_on_executors(sources, reading)
        else:
            frames, items = (read(spark, captures, **SOURCE_OPTIONS[name], **made) for name in SOURCES)
            written = {"frames": store.write("frames", dated(frames)), "items": store.write("items", items)}
        for name in SOURCES:
            progress(name, written[name])
        write_derived(store, wanted, progress, lambda: check(spark, captures, here=store.few, **made))
        store.finish()


def chosen(tables: Iterable[str]) -> list[str]:
    """Return these tables in the order in which they are written.  Raises ConfigError for an unknown one."""
    wanted = set(tables)
    for name in sorted(wanted - set(TABLES)):
        raise ConfigError(f"there is no table {name!r}: there are {', '.join(TABLES)}")
    return [name for name in TABLES if name in wanted]


def write_derived(
    store: Store, tables: Iterable[str], progress: Progress, statements: Callable[[], DataFrame]
) -> None:
    """Write the tables that derive from the stored `frames` and `items`, several at once.

    statements: returns those of the checks on the captures, for the table `findings`.
    """
    frames, items = store.source("frames"), store.source("items")
    wanted = [name for name in tables if name not in SOURCES]
    empty = _empty(store, wanted) if store.local_tasks else set[str]()
    selecting = [name for name in wanted if "exchanges" in FROM[name][1] and name not in empty]
    with ThreadPoolExecutor(AT_ONCE) as pool, ExitStack() as kept:

        def keep(name: str, rows: DataFrame) -> DataFrame:
            return kept.enter_context(store.kept(name, rows))

        def pair() -> DataFrame:
            pairs, found = KEPT
            needed = frames
            if store.local_tasks:
                begun = store.beginnings("frames", "reply", BEGINNINGS_MAX, ACK)
                needed = frames if begun is None else of_exchanges(frames, begun)
            return keep(found, exchanges(needed, keep=partial(keep, pairs)))

        if selecting:
            paired = pool.submit(pair)

        def write(name: str) -> int:
            if name in empty:
                return store.write_empty(name)
            if name == "subjects":
                return store.write(name, subjects(frames, message_folds(frames)))
            return store.write(
                name,
                derive(
                    name,
                    frames,
                    items,
                    paired.result() if name in selecting else None,
                    statements() if "statements" in FROM[name][1] else None,
                ),
            )

        # Those that wait for the exchanges go last, so that they do not keep the others waiting.
        begun = {name: pool.submit(write, name) for name in sorted(wanted, key=selecting.__contains__)}
        try:
            for name in wanted:
                progress(name, begun[name].result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _empty(store: Store, tables: Iterable[str]) -> set[str]:
    """Return those of the tables that are known to be empty from the values in the sources."""
    values = cache(store.values)
    rare = ((name, *RARE[name]) for name in tables if name in RARE)
    return {name for name, source, column, told in rare if not told(values(source, column))}


def latencies(spark: SparkSession, out: str | Path, top: int = 20) -> list[dict[str, Any]]:
    """Return request latencies by subject template, those with most requests first.

    out: the folder or URL of the tables.  Each row: template, requests, replies, no_responders (counts); p50,
    p99, worst (ms, None without a reply).  Raises NatsproxyError where the table `requests` is not whole.
    """
    with translate_errors(out):
        rows = (
            Store(spark, out)
            .read("requests")
            .groupBy("template")
            .agg(
                F.sum("requests").alias("requests"),
                F.sum("replies").alias("replies"),
                F.count_if(F.expr("outcome = 'no responders'")).alias("no_responders"),
                *(
                    F.expr(f"{percentile(spark, 'latency_ns', share)} / 1e6D").alias(name)
                    for name, share in (("p50", "0.5"), ("p99", "0.99"), ("worst", "1.0"))
                ),
            )
            .orderBy(F.desc("requests"), "template")
            .limit(top)
            .collect()
        )
    return [row.asDict() for row in rows]


def _list(captures: Sequence[str | Path]) -> str:
    return json.dumps([str(path) for path in captures])
