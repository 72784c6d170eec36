"""deploy/tables.md names every table and every column, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from natsproxy.spark.schema import SOURCES, TABLES
from tests.kit.documents import ROOT

GUIDE = (ROOT / "deploy" / "tables.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", GUIDE, re.DOTALL | re.MULTILINE))


def columns(ddl: str) -> Iterator[str]:
    """Yield the names of the columns of a schema; those inside of a type are none."""
    flat, before = ddl, ""
    while flat != before:
        flat, before = re.sub(r"<[^<>]*>", "", flat), flat
    for column in flat.split(", "):
        yield column.split()[0]


def test_each_table_has_a_section() -> None:
    assert set(SECTIONS) == {*SOURCES, *TABLES}


@pytest.mark.parametrize(("name", "ddl"), (SOURCES | TABLES).items())
def test_each_column_is_explained_once(name: str, ddl: str) -> None:
    first_cells = re.findall(r"^\| (`.*?) \|", SECTIONS[name], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(columns(ddl))
