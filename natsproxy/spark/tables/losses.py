"""The rows that report what could not be read of captures: damage, and segments deleted before."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from natsproxy.spark.source.walk import NOT_READ

_ROWS: Final = {
    "frames": ("op = '_corrupt'", "err"),
    "items": (
        f"kind = 'gap' AND startswith(get_json_object(info, '$.reason'), '{NOT_READ}')",
        f"substr(get_json_object(info, '$.reason'), {len(NOT_READ) + 1})",
    ),
}
"""The rows of each source that report a loss, and the SQL of its text."""
MOST: Final = 1_000
"""The number of losses reported at once."""


def losses(source: str, rows: DataFrame) -> list[str]:
    """Return a clause for each block, file or run of segments that could not be read, `MOST` at most.

    source: frames or items.
    """
    chosen, text = _ROWS[source]
    told = rows.where(chosen).selectExpr(f"{text} AS text").distinct().orderBy("text").limit(MOST)
    return [row["text"] for row in told.collect()]
