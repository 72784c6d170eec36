"""`natsproxy analyze`: captures to tables, on Spark."""

from __future__ import annotations

from pathlib import Path

import click

from natsproxy.capture.reader import open_capture
from natsproxy.cli.table import show_table
from natsproxy.errors import NatsproxyError
from natsproxy.spark.session import MISSING, local_session


@click.command()
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder for the tables.")
@click.option("--tables", default="", help="Only these, comma-separated (frames is always written).")
@click.option(
    "--report", type=click.Path(path_type=Path), help="Also write a report, one HTML page, to this file."
)
@click.option("--cores", default=2, show_default=True, help="Of this machine.")
@click.option("--quiet", is_flag=True, help="No progress.")
def analyze(
    captures: tuple[Path, ...], out: Path, tables: str, report: Path | None, cores: int, quiet: bool
) -> None:
    """Write the tables of captures as Parquet, and show request latencies.

    \b
    natsproxy analyze traffic.ncap --out tables
    natsproxy analyze traffic/ --out tables --tables frames,requests
    natsproxy analyze traffic/ --out tables --report report.html
    """
    try:
        for path in captures:
            open_capture(path)
        try:
            from natsproxy.spark.jobs import analyze as run
            from natsproxy.spark.jobs import latencies
            from natsproxy.spark.tables import TABLES
        except ImportError:
            raise NatsproxyError(MISSING) from None
        spark = local_session(cores)
        try:
            wanted = [name for name in tables.split(",") if name] or list(TABLES)
            run(spark, [str(path) for path in captures], out, wanted, _silent if quiet else _progress)
            if "requests" in wanted:
                _show(latencies(spark, out))
            if report is not None:
                from natsproxy.spark.report import write

                write(spark, out, report, captures)
        finally:
            spark.stop()
    except NatsproxyError as error:
        raise click.ClickException(str(error)) from None


def _silent(table: str, rows: int) -> None:
    return None


def _progress(table: str, rows: int) -> None:
    click.echo(f"{table}: {rows} rows", err=True)


def _show(rows: list[dict[str, object]]) -> None:
    heads = ("requests", "replies", "no responders", "p50 ms", "p99 ms", "worst ms", "subject")
    show_table(heads, map(_cells, rows))


def _cells(row: dict[str, object]) -> list[object]:
    counts = [row[name] for name in ("requests", "replies", "no_responders")]
    times = [f"{row[name]:.2f}" if row[name] is not None else "-" for name in ("p50", "p99", "worst")]
    return [*counts, *times, row["template"]]
