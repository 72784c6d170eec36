"""Captures that their recorder deleted before they were read: the rows that stand for them."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

_ROWS: Final = {
    "frames": ("op = '_corrupt'", "err"),
    "items": ("kind = 'gap'", "regexp_replace(get_json_object(info, '$.reason'), '^not read: ', '')"),
}
"""The rows of each source that may tell of a loss, and the text of one."""


def losses(source: str, rows: DataFrame) -> list[str]:
    """Return a clause for each run of segments, or file, that was deleted before it was read.

    source: frames or items.
    """
    chosen, text = _ROWS[source]
    told = rows.where(chosen).selectExpr(f"{text} AS text").where("text LIKE '%deleted before%'")
    return sorted(row["text"] for row in told.distinct().collect())
