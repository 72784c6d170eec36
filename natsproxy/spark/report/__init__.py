"""The report: one self-contained HTML page about the tables of an analysis.

`collect.py` queries small results with Spark, section by section; the queries are in `overview.py`,
`traffic.py`, `senders.py`, `exchanges.py`, `jetstream.py`, `checks.py`, `errors.py`, `faults.py`,
`connections.py` and `needs.py`, their common parts in `groups.py`.  `findings.py` writes the few sentences at
the top of the page.  `page.py` puts all of it as JSON into the page, whose script (`*.js`) draws it.
`page.py` and `findings.py` know nothing of Spark.  Read `collect.py` first: `SECTIONS` is the list of its
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from natsproxy.errors import NatsproxyError
from natsproxy.spark.report.page import render

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(
    spark: SparkSession,
    out: str | Path,
    path: str | Path,
    captures: Sequence[str | Path] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the report of the tables under `out` to the HTML file `path`.

    captures: the names for the heading.  notes: warnings about them.  Raises NatsproxyError where
    there are no tables, where one cannot be read, or where the file cannot be written; the page is
    written whole or not at all.
    """
    from natsproxy.spark.errors import translate_errors
    from natsproxy.spark.report.collect import collect

    part = Path(f"{path}.part")
    try:
        with part.open("w", encoding="utf-8") as page:  # opened before the long work
            with translate_errors(out):
                data = collect(spark, out, captures, notes)
            page.write(render(data))
        part.replace(path)
    except OSError as error:
        raise NatsproxyError(f"the report cannot be written to {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink()
