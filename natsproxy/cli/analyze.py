"""`natsproxy analyze`: captures to tables, on Spark."""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING

import click

from natsproxy.cli.analyze_progress import RunProgress, WatchProgress, no_line
from natsproxy.cli.table import show_table
from natsproxy.errors import ConfigError, NatsproxyError, Stopped
from natsproxy.printable import printable

if TYPE_CHECKING:
    from natsproxy.spark.session import Spark

_MOST_NAMED = 5  # losses named in one warning
_CHECKED_MAX = 16 << 20  # bytes of captures that are checked where nobody asked for it: about ten seconds


@click.command()
@click.argument("captures", nargs=-1, required=True)
@click.option(
    "--out", required=True, help="The folder for the tables; with Spark also a URL that it can write."
)
@click.option(
    "--tables",
    default="",
    help="Only these tables, comma-separated (frames is always written).  "
    "[all but permissions; findings only of small captures]",
)
@click.option("--report", help="Also write a report, one HTML page, to this file.")
@click.option("--watch", is_flag=True, help="Continue while the captures grow, until stopped.")
@click.option("--every", default=10.0, show_default=True, help="With --watch: seconds between two batches.")
@click.option(
    "--refresh",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: the least time between two writes of the current hour.",
)
@click.option(
    "--engine",
    type=click.Choice(("spark", "sail")),
    default="spark",
    show_default=True,
    help="Apache Spark, or Sail (experimental): in seconds and without a Java, on this machine.",
)
@click.option("--cores", default=2, show_default=True, help="Cores of this machine to use.")
@click.option("--master", help="Run on this cluster (spark://host:7077, ...) instead of this machine.")
@click.option("--remote", help="Run on this Spark Connect server (sc://host:15002) instead of this machine.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting (repeatable).")
@click.option("--spark-log", default=os.devnull, help="A file for the log of Spark itself.")
@click.option("--quiet", is_flag=True, help="No progress.")
def analyze(
    captures: tuple[str, ...],
    out: str,
    tables: str,
    report: str | None,
    watch: bool,
    every: float,
    refresh: float,
    engine: str,
    cores: int,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    spark_log: str,
    quiet: bool,
) -> None:
    """Write the tables of captures as Parquet, and show request latencies.

    CAPTURES are files, folders of segments, globs, or URLs of object stores.  A second run replaces the
    tables; an interrupted run leaves no table that counts as complete.

    With --watch the folders may still be empty.  Blocks are read in batches, each block exactly once, even if
    the command is killed and started again.  The tables of an hour are written when the hour is over; those
    of the current hour, and the report, every --refresh seconds.  On SIGINT or SIGTERM the command reads the
    remaining blocks, writes all tables and ends; on a second signal it ends at once.

    \b
    natsproxy analyze traffic.ncap --out tables
    natsproxy analyze traffic/ --out tables --tables frames,requests
    natsproxy analyze traffic/ --out tables --tables permissions && natsproxy permissions --tables tables
    natsproxy analyze traffic/ --out tables --report report.html
    natsproxy analyze traffic/ --out tables --watch
    natsproxy analyze traffic/ --out tables --watch --every 30 --refresh 300 --report report.html
    natsproxy analyze 's3://bucket/traffic/*.ncap' --out s3a://bucket/tables --master spark://host:7077
    """
    logging.basicConfig(handlers=[logging.NullHandler()])  # py4j would log the traceback of a Ctrl-C
    from natsproxy.spark.session import connect_server, need_pyspark, open_session

    need_pyspark()
    from natsproxy.spark.jobs import analyze
    from natsproxy.spark.schema import SOURCES
    from natsproxy.spark.source import partitions, survey
    from natsproxy.spark.storage.store import Store, check_place
    from natsproxy.spark.tables import USUAL
    from natsproxy.spark.tables.losses import losses

    check_place(out, sail=engine == "sail")
    if watch and engine == "sail":
        raise ConfigError(
            "--watch needs --engine spark: Sail would delete the hours that a watch has written"
        )
    settings = dict(map(_setting, conf))
    wanted = analyze.chosen([name for name in tables.split(",") if name] or USUAL)
    with RunProgress(quiet) as progress:
        files: list[survey.SegmentFile] | None = None
        notes: list[str] = []
        if not watch and connect_server(engine, remote, settings) is None:  # a server has its own files
            progress.say("looking for captures")
            files = survey.survey(captures, looked=progress.looking)  # before the seconds of Spark's start
            notes = survey.unfinished(files)
            told = partitions.describe_copies(files)
            for clauses in ([told] if told else [], notes):
                if clauses:
                    progress.end()
                    click.echo(f"Note: {printable(_first_of(clauses))}", err=True)
        size = None if files is None else sum(file.size for file in files)
        if not tables and (watch or (size or 0) > _CHECKED_MAX):
            wanted.remove("findings")
            progress.end()
            click.echo(
                "Note: no table findings, as its checks take long on large captures (--tables findings)",
                err=True,
            )
        spark = open_session(
            cores,
            size=size,
            master=master,
            remote=remote,
            engine=engine,
            log=spark_log,
            settings=settings,
            starting=lambda: progress.say(f"starting {engine.capitalize()}"),
        )
        try:
            if watch:
                progress.end()
                _watch(spark, captures, out, wanted, every, refresh, report, quiet)
            else:
                with survey.saved(files or ()) as seen:
                    made = seen if files else None
                    progress.say(f"reading {', '.join(captures)}")
                    analyze.analyze(spark, captures, out, wanted, progress.table, made, progress.reading)
                store = Store(spark, out)
                _LossWarnings()([one for name in SOURCES for one in losses(name, store.read(name))])
            _results(spark, out, wanted, report, captures, notes, progress)
        finally:
            spark.stop()


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"--conf {text}: must be NAME=VALUE, such as spark.driver.memory=4g")
    return name, value


class _StopRequest:
    """A callable that returns True after SIGINT or SIGTERM; after a second one it raises Stopped."""

    def __init__(self) -> None:
        self._signals = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._count)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def __call__(self) -> bool:
        if self._signals > 1:
            raise Stopped("stopped at once: run the same command again to continue")
        return self._signals > 0


def _watch(
    spark: Spark,
    captures: Sequence[str],
    out: str,
    tables: list[str],
    every: float,
    refresh: float,
    report: str | None,
    quiet: bool,
) -> None:
    """Watch until a signal arrives; write the report after each write of the tables.

    A report that cannot be written does not end the watch.
    """
    from natsproxy.spark.report import write
    from natsproxy.spark.watch import job

    def refreshed() -> None:
        if report is None:
            return
        try:
            write(spark, out, report, captures)
        except Exception as error:  # the tables are right, and the next refresh writes the report again
            text = str(error) if isinstance(error, NatsproxyError) else f"{type(error).__name__}: {error}"
            click.echo(f"Warning: the report was not written: {text}", err=True)

    with nullcontext(no_line) if quiet else WatchProgress(captures) as progress:
        job.watch(
            spark,
            captures,
            out,
            tables,
            every=every,
            refresh=refresh,
            stop=_StopRequest(),
            progress=progress,
            refreshed=refreshed,
            lost=_LossWarnings(),
        )


class _LossWarnings:
    """Warnings about data missing from the tables; each part is named once."""

    def __init__(self) -> None:
        self._named: deque[str] = deque(maxlen=1_000)  # a watch may lose segments for weeks

    def __call__(self, lost: list[str]) -> None:
        fresh = sorted(set(lost).difference(self._named))
        self._named.extend(fresh)
        if fresh:
            click.echo(f"Warning: {printable(_first_of(fresh))}", err=True)


def _first_of(clauses: Sequence[str]) -> str:
    more = f"; and {len(clauses) - _MOST_NAMED} more" if len(clauses) > _MOST_NAMED else ""
    return f"{'; '.join(clauses[:_MOST_NAMED])}{more}"


def _results(
    spark: Spark,
    out: str,
    tables: list[str],
    report: str | None,
    captures: Sequence[str],
    notes: Sequence[str],
    progress: RunProgress,
) -> None:
    """Show the latencies; write the report if one is wanted."""
    progress.end()
    from natsproxy.spark.jobs.analyze import latencies

    if "requests" in tables:
        _show(latencies(spark, out))
    if report is not None:
        from natsproxy.spark.report import write

        progress.say(f"writing {report}")
        write(spark, out, report, captures, notes)
        progress.end()
    click.echo(f"the tables are in {out}" + (f", the report is {report}" if report else ""), err=True)


def _show(rows: list[dict[str, object]]) -> None:
    heads = ("requests", "replies", "no responders", "p50 ms", "p99 ms", "worst ms", "subject")
    show_table(heads, map(_cells, rows))


def _cells(row: dict[str, object]) -> list[object]:
    counts = [row[name] for name in ("requests", "replies", "no_responders")]
    times = [f"{row[name]:.2f}" if row[name] is not None else "-" for name in ("p50", "p99", "worst")]
    return [*counts, *times, row["template"]]
