"""Folded templates in tables: positions with too many names, as `natsproxy.protocol.folding` finds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from natsproxy.protocol.folding import folds
from natsproxy.spark.tables.base import MESSAGE

_TEMPLATES: Final = 1_000_000
"""The different templates that the search for folds looks at."""
_FOLDS: Final = 50
"""The folds that are made, those nearest to the first token: each is work for every row."""


def message_folds(frames: DataFrame) -> list[str]:
    """Return the folds of the templates of messages; this reads that column of all frames."""
    return template_folds(frames.where(MESSAGE))


def template_folds(rows: DataFrame) -> list[str]:
    """Return the folds of the templates in a table."""
    known = rows.select("template").where("template IS NOT NULL").distinct().limit(_TEMPLATES)
    return folds(known.toArrow().column("template").to_pylist())[:_FOLDS]


def folded(column: str, before: Sequence[str]) -> Column:
    """Return a column of templates with its positions folded; before: what stands before each."""
    made = F.col(column)
    for prefix in before:
        token = "[^.]+" if prefix else "[^.$_][^.]*"
        made = F.regexp_replace(made, f"^({re.escape(prefix)}){token}", "$1**")
    return made.alias(column)
