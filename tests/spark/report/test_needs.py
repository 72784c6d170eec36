"""The section "Who needs what", of a stored table and without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

import pyarrow as pa

from natsproxy.permissions.formats import server_text
from natsproxy.permissions.needs import needs_of_rows
from natsproxy.permissions.rows import RESPOND, PermissionRow
from natsproxy.permissions.uses import By
from natsproxy.spark.report.needs import LETTERS, ROWS, fitting, section
from natsproxy.spark.report.tables import Axis, Tables
from natsproxy.spark.storage import local
from natsproxy.spark.storage.permission_rows import read_rows

MS = 1_000_000
AXIS = Axis(0, MS, 100)


def used(
    user: str | None,
    template: str,
    marks: str,
    frames: int = 1,
    *,
    verb: str = "publish",
    values: list[list[str] | None] | None = None,
    most: int | None = None,
) -> PermissionRow:
    """Return a row of the table."""
    longest = None if most is None else 5 * MS
    return PermissionRow(
        *(user, None, None, "go", verb, None, template, marks),
        *(frames, 0, MS, 9 * MS, False, values, most, longest),
    )


ROWS_OF_ANN = [
    used("ann", "orders.*.created", "121", 40, values=[None, [str(n) for n in range(37)], None]),
    used("ann", "work", "1", 2, verb="subscribe"),
    used("ann", "", "", 3, verb=RESPOND, most=2),
]


def test_lines_and_blocks_are_those_of_a_stored_table(tmp_path: Path) -> None:
    """Clients with most frames come first; a block is that of the command."""
    rows = [used("bob", "</pre><script>", "1", 50), *ROWS_OF_ANN, used(None, "x", "1")]
    (tmp_path / "permissions").mkdir()
    local.write_table(pa.Table.from_pylist([row._asdict() for row in rows]), f"{tmp_path}/permissions/a")
    local.write_list([{"table": "permissions", "written": "batch"}], str(tmp_path / "analysis"))

    found = section(read_rows(tmp_path), AXIS)

    lines = [(row["name"], row["allowed"], row["template"], row["frames"]) for row in found["listed"]]
    assert lines == [
        ("bob", "publish", "</pre><script>", 50),
        ("ann", "publish", "orders.*.created", 40),
        ("ann", "subscribe", "work", 2),
        ("ann", RESPOND, "", 3),
        ("(unnamed)", "publish", "x", 1),
    ]
    assert found["listed"][1]["values"] == "37"
    assert (found["listed"][1]["first"], found["listed"][1]["last"]) == (1.0, 9.0)
    blocks = {row["name"]: row for row in found["blocks"]}
    assert {name: (row["lines"], row["frames"]) for name, row in blocks.items()} == {
        "bob": (1, 50),
        "ann": (2, 45),
        "(unnamed)": (1, 1),
    }
    assert blocks["ann"]["text"] == server_text(needs_of_rows(ROWS_OF_ANN), By.USER)


def test_a_long_block_is_not_cut() -> None:
    """It is left out: a part of a block looks like a whole one."""
    rows = [used("ann", f"{'long' * 50}.{n}", "12") for n in range(2)]
    rows += [used("bob", f"{chr(97 + n) * LETTERS}.x", "11") for n in range(2)]
    texts = {row["name"]: row["text"] for row in section(rows, AXIS)["blocks"]}
    assert texts["bob"] is None
    assert texts["ann"] is not None
    assert texts["ann"].endswith("}\n")


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"a": 1, "b": ROWS - 1}, ["a", "b"]),
        ({"a": 1, "b": ROWS, "c": 5}, ["a", "c"]),
        ({"a": ROWS + 1}, []),
    ],
)
def test_clients_are_fetched_whole_or_not_at_all(sizes: dict[str, int], wanted: list[str]) -> None:
    assert fitting(sizes) == wanted


def test_templates_of_blocks_are_not_folded() -> None:
    """A folded one is a subject that nobody used."""
    tables: Any = SimpleNamespace(_folds=["a.**"])
    table: Any = SimpleNamespace(columns=["template"])
    assert Tables._folded(tables, "permissions", table) is table
