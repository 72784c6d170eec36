"""Copies of a capture in one read: each block counts once, from whichever file has it whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import recover
from natsproxy.errors import CaptureError
from tests.spark.growing_captures import make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from pyspark.sql.types import StructType

from natsproxy.spark.source.data_source import NatscapReader
from natsproxy.spark.source.options import parse
from natsproxy.spark.source.partitions import describe_copies
from natsproxy.spark.source.survey import survey

pytestmark = pytest.mark.spark
ROW = (
    StructType()
    .add("recorder", "string")
    .add("segment", "integer")
    .add("in_ordinal", "long")
    .add("op", "string")
)
BLOCKS = [3, 4, 5]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A folder with one closed segment of three blocks."""
    (path,) = make(tmp_path / "traffic", b"a", [BLOCKS])
    return path


def rows(*places: Path, mode: str = "PERMISSIVE", what: str = "frames") -> list[tuple[Any, ...]]:
    """Return the rows of a read of several places, in order."""
    given = {"paths": json.dumps(list(map(str, places))), "mode": mode, "what": what}
    reader = NatscapReader(ROW, parse(given))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=repr)


def ordinals(found: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the ordinals of rows of frames."""
    return sorted(row[2] for row in found if row[3] != "_corrupt")


def offsets(path: Path) -> list[int]:
    """Return where the blocks of a capture begin."""
    return [ref.block.offset for ref in open_capture(path).blocks()]


def damaged(path: Path, target: Path, block: int) -> Path:
    """Write a copy in which one block has another body than its checksum says."""
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PING", offsets(path)[block])] ^= 0xFF
    target.write_bytes(raw)
    return target


def crashed(path: Path, target: Path, block: int) -> Path:
    """Write a copy without an index, in which one block has no header any more."""
    raw = bytearray(path.read_bytes()[: _body_end(path)])
    raw[offsets(path)[block]] ^= 0xFF
    target.write_bytes(raw)
    return target


def _body_end(path: Path) -> int:
    return max(ref.block.end for ref in open_capture(path).blocks())


def test_a_folder_with_a_copy_counts_once(original: Path) -> None:
    """Under another name, in the same folder, and given twice; the run says so."""
    alone = rows(original)
    copy = Path(shutil.copy(original, original.with_name("copy.ncap")))
    assert len(alone) == sum(BLOCKS)
    assert rows(original.parent) == rows(original, copy) == rows(original, original.parent) == alone
    said = describe_copies(survey([str(original.parent)]))
    # Names that a recorder gave stand behind the others.
    assert said == f"{original} holds the same segment as {copy}: each block counts once"
    assert describe_copies(survey([str(original), str(original)])) is None


def test_segments_of_one_recorder_are_no_copies(tmp_path: Path) -> None:
    """Nor are those of two recorders that hold the same."""
    make(tmp_path, b"a", [BLOCKS, BLOCKS])
    make(tmp_path, b"b", [BLOCKS])
    assert len(rows(tmp_path)) == 3 * sum(BLOCKS)
    assert describe_copies(survey([str(tmp_path)])) is None


def test_a_recovered_capture_counts_once(original: Path) -> None:
    """Beside its source, which a crash left without an index and with a block that is gone."""
    broken = crashed(original, original.with_name("broken.ncap"), 1)
    original.unlink()
    result = recover(broken, broken.with_name("saved.ncap"))
    assert (result.blocks, result.frames) == (2, 8)
    alone = rows(broken)
    assert ordinals(alone) == [0, 1, 2, *range(7, 12)]
    assert [row[3] for row in alone].count("_corrupt") == 1
    assert rows(broken.parent) == alone


@pytest.mark.parametrize("harm", [damaged, crashed])
def test_what_one_copy_has_is_not_lost(original: Path, harm: Any) -> None:
    """A block that is damaged in one file is read from the other, either way round; no damage is told of."""
    whole = rows(original)
    first = harm(original, original.with_name("first.ncap"), 0)
    last = harm(original, original.with_name("last.ncap"), 2)
    assert rows(original, first) == rows(first, original) == whole
    assert rows(first, last) == rows(last, first) == whole
    assert rows(first, last, mode="FAILFAST") == whole


def test_damage_of_all_copies_is_told_of_once(original: Path) -> None:
    """As one row, or as the error."""
    first = damaged(original, original.with_name("first.ncap"), 1)
    shutil.copy(first, original)
    found = rows(first, original)
    assert ordinals(found) == [0, 1, 2, *range(7, 12)]
    assert [row[3] for row in found].count("_corrupt") == 1
    with pytest.raises(CaptureError, match="checksum"):
        rows(first, original, mode="FAILFAST")
