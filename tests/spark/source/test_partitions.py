"""Partitions: many small files share them, a large one has several, and a saved survey makes the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.growing_captures import make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from pyspark.sql.types import StructType

from natsproxy.spark.source.data_source import NatscapReader, plan
from natsproxy.spark.source.options import parse
from natsproxy.spark.source.partitions import OPEN_BYTES
from natsproxy.spark.source.survey import saved, survey

pytestmark = pytest.mark.spark
ROW = StructType().add("segment", "integer").add("in_ordinal", "long")


def rows(options: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return the rows that the data source finds."""
    reader = NatscapReader(ROW, parse(options))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_small_files_share_partitions(tmp_path: Path) -> None:
    """As many as could be read in the time that a partition takes, opening them included; no row is lost."""
    make(tmp_path, b"a", [[3]] * 100)
    options = {"path": str(tmp_path), "partitionBytes": str(30 * OPEN_BYTES)}
    parts = plan(parse(options))
    assert [len(part.runs) for part in parts] == [30, 30, 30, 10]
    assert [len(run.offsets) for part in parts for run in part.runs] == [1] * 100
    assert sum(part.size for part in parts) == sum(
        block.end - block.offset for file in survey([str(tmp_path)]) for block in file.blocks
    )
    assert rows(options) == [(ordinal // 3, ordinal) for ordinal in range(300)]
    assert len(plan(parse({"path": str(tmp_path)}))) == 1


def test_a_large_file_has_several_partitions(tmp_path: Path) -> None:
    """Its blocks stay in order, and the next file shares the last one."""
    make(tmp_path, b"a", [[1] * 5, [1]])
    size = plan(parse({"path": str(tmp_path)}))[0].size // 6
    parts = plan(parse({"path": str(tmp_path), "partitionBytes": str(OPEN_BYTES + 2 * size)}))
    assert [[len(run.offsets) for run in part.runs] for part in parts] == [[2], [2], [1, 1]]


def test_a_survey_is_made_once(tmp_path: Path) -> None:
    """A saved one gives the same partitions, and no file is looked at; blocks without wanted rows are out."""
    make(tmp_path / "a", b"a", [[1, 1], [1]])
    (tmp_path / "a" / "broken.ncap").write_bytes(
        next((tmp_path / "a").glob("*-0.ncap")).read_bytes()[:-60] + b"x" * 60
    )
    options = {"path": str(tmp_path / "a")}
    expected = plan(parse(options))
    assert [run.offsets for part in plan(parse(options | {"op": "PUB"})) for run in part.runs] == [()]
    with saved(survey([options["path"]])) as file:
        shutil.rmtree(tmp_path / "a")
        assert plan(parse(options | {"survey": file})) == expected
    assert not Path(file).exists()
