"""Statements of checks: what went wrong, by check, and one by one with the frames that prove it."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.check.statement import FOUND
from natsproxy.spark.report.groups import TEXT, TOP, Groups, Row, connection_name, rows
from natsproxy.spark.report.tables import Axis, Tables

_FRAMES: Final = 20
"""The frames that are shown of a statement."""
_SENTENCE: Final = 600
"""The characters to which sentences are cut: they name connections, streams and files."""


def checks(table: DataFrame, axis: Axis, tables: Tables) -> dict[str, Any]:
    """Return statements counted by check, and the first of them: what was found, then what is not told."""
    found = F.col("verdict") == FOUND
    counts = (F.count_if(found).alias("found"), F.count_if(~found).alias("cannot_say"))
    whole, by = Groups(table, ("check",), tables).with_whole(counts, "found")
    if not by:
        return {}
    shown = table.withColumns(
        {
            "sentence": F.substring("sentence", 1, _SENTENCE),
            "shown": F.slice("frames", 1, _FRAMES),
            "more": F.greatest(F.lit(0), F.size("frames") - _FRAMES),
        }
    )
    first = shown.orderBy(found.desc(), F.col("t_ns").asc_nulls_last(), "check", "sentence").limit(TOP)
    return {**whole, "by": by, "listed": [_statement(row, axis) for row in rows(first)]}


def _statement(row: Row, axis: Axis) -> Row:
    """Return a statement as the page shows it."""
    frames = [_frame(frame, axis) for frame in row["shown"]]
    return {
        "check": row["check"],
        "found": row["verdict"] == FOUND,
        "sentence": row["sentence"],
        "rules": [rule[:TEXT] for rule in row["rules"]],
        "conn": list(dict.fromkeys(frame["conn"] for frame in frames)),
        "frames": frames,
        "more": row["more"],
        **({"first": frames[0]["t"], "last": frames[-1]["t"]} if frames else {}),
    }


def _frame(frame: Any, axis: Axis) -> Row:
    return {
        "t": axis.ms(frame["t_ns"]),
        "conn": connection_name(frame["recorder"], frame["conn_id"]),
        "dir": frame["dir"],
        "ordinal": frame["ordinal"],
        "text": frame["text"],
        "rule": frame["rule"] and frame["rule"][:TEXT],
    }
