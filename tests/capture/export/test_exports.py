"""Exports: the same frames that readers and Spark see, whole or not at all."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from natsproxy.capture.export.json_lines import jsonl
from natsproxy.capture.export.output import output
from natsproxy.capture.export.parquet import parquet
from natsproxy.capture.format.records import Item
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import CaptureReader, open_capture
from natsproxy.errors import CaptureError
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import Scribe, write

RECORDINGS = Path(__file__).parents[3] / "recordings"
GOLDEN = sorted(RECORDINGS.glob("*.ncap"))


@pytest.fixture
def items() -> list[Item]:
    """A conversation of some hundred frames."""
    scribe = Scribe()
    for n in range(300):
        scribe.frame(n * 1_000, 1, C2S, b"PUB orders.%d 3\r\na\xff%d\r\n" % (n, n % 10))
        scribe.frame(n * 1_000 + 5, 1, S2C, b"+OK\r\n", cause="quiet" if n % 7 == 0 else None)
    return scribe.items


def lines(reader: CaptureReader, query: Query | None = None) -> list[dict[str, object]]:
    """Return what is exported as JSON."""
    out = io.BytesIO()
    count = jsonl(reader, out, query or Query())
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(found) == count
    return found


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_line_of_json_for_each_frame(path: Path) -> None:
    """With what a reader sees in it."""
    found = lines(open_capture(path))
    expected = list(read_frames(open_capture(path)))
    assert [(row["conn"], row["in"], row["out"], row["flags"]) for row in found] == [
        (one.conn.number, one.in_ordinal, one.out_ordinal, one.flags) for one in expected
    ]
    assert all(
        one.frame is not None and row.get("subject", "") == one.frame.subject.decode()
        for row, one in zip(found, expected, strict=True)
    )


def test_a_query_is_for_every_form(tmp_path: Path, items: list[Item]) -> None:
    """And payloads that are no text are hex."""
    reader = open_capture(write(tmp_path / "a.ncap", items))
    found = lines(reader, Query(direction=C2S, subjects=(b"orders.17",)))
    assert [(row["subject"], row["payload_hex"]) for row in found] == [("orders.17", "61ff37")]


class TestParquet:
    """Tables for whatever reads Parquet."""

    def read(self, reader: CaptureReader, query: Query | None = None, payload: int = -1) -> Any:
        """Return what is exported, as a table."""
        pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'natsproxy[spark]'")
        out = io.BytesIO()
        count = parquet(reader, out, query or Query(), payload)
        table = pq.read_table(out)
        assert table.num_rows == count
        return table

    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    @pytest.mark.parametrize("payload", [0, 4, -1])
    def test_it_is_the_table_of_the_decoder(self, path: Path, payload: int) -> None:
        """The schema and the rows of the batches that Spark gets."""
        pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'natsproxy[spark]'")
        from natsproxy.capture.columns.arrow import batch, schema
        from natsproxy.capture.read.segment import CaptureFile

        with CaptureFile(path) as file:
            batches = [batch(file, ref, payload=payload) for ref in file.blocks()]
        assert self.read(open_capture(path), payload=payload).equals(pa.Table.from_batches(batches, schema()))

    def test_several_row_groups(
        self, tmp_path: Path, items: list[Item], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Are one table, in the order of the capture."""
        whole = open_capture(write(tmp_path / "a.ncap", items, per_block=50))
        once = self.read(whole)
        monkeypatch.setattr("natsproxy.capture.export.parquet_file.GROUP_ROWS", 120)
        assert self.read(whole).equals(once)
        one = self.read(whole, Query(subjects=(b"orders.17",)))
        assert one.column("payload").to_pylist() == [b"a\xff7"]

    def test_of_nothing(self, tmp_path: Path) -> None:
        """The columns are there."""
        table = self.read(open_capture(write(tmp_path / "a.ncap", [])))
        assert table.num_rows == 0
        assert "subject" in table.column_names

    def test_without_pyarrow_the_error_names_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a sentence."""
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.delitem(sys.modules, "natsproxy.capture.export.parquet_file", raising=False)
        with pytest.raises(CaptureError, match="pip install"):
            parquet(open_capture(write(tmp_path / "a.ncap", [])), io.BytesIO(), Query())


class TestOutput:
    """A file under its name is whole."""

    @pytest.fixture
    def reader(self, tmp_path: Path) -> CaptureReader:
        """A capture beside the output."""
        return open_capture(write(tmp_path / "a.ncap", []))

    def test_it_appears_when_it_is_whole(self, tmp_path: Path, reader: CaptureReader) -> None:
        """And nothing else is left."""
        with output(tmp_path / "out", reader) as out:
            out.write(b"half")
            assert not (tmp_path / "out").exists()
        assert (tmp_path / "out").read_bytes() == b"half"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ncap", "out"]

    def fail(self, path: Path, reader: CaptureReader, error: BaseException) -> None:
        """Fail in the middle."""
        with output(path, reader, force=True) as out:
            out.write(b"half")
            raise error

    @pytest.mark.parametrize("error", [CaptureError("damaged"), KeyboardInterrupt(), OSError(28, "full")])
    def test_a_failure_leaves_nothing(
        self, tmp_path: Path, reader: CaptureReader, error: BaseException
    ) -> None:
        """Nor does it touch what was there."""
        (tmp_path / "old").write_bytes(b"old")
        for name in ("old", "new"):
            with pytest.raises(CaptureError if isinstance(error, OSError) else type(error)):
                self.fail(tmp_path / name, reader, error)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ncap", "old"]
        assert (tmp_path / "old").read_bytes() == b"old"

    def test_names_that_are_taken(self, tmp_path: Path, reader: CaptureReader) -> None:
        """Only force overwrites, and the capture itself is never a target."""
        (tmp_path / "out").write_bytes(b"old")
        with pytest.raises(CaptureError, match="exists already"), output(tmp_path / "out", reader):
            pass
        with output(tmp_path / "out", reader, force=True) as out:
            out.write(b"new")
        assert (tmp_path / "out").read_bytes() == b"new"
        with (
            pytest.raises(CaptureError, match="the capture itself"),
            output(tmp_path / "a.ncap", reader, force=True),
        ):
            pass

    @pytest.mark.parametrize("form", [jsonl, parquet])
    def test_a_full_disk_is_one_sentence(
        self, tmp_path: Path, items: list[Item], form: Callable[[CaptureReader, IO[bytes], Query], int]
    ) -> None:
        """Whoever does the writing."""
        if form is parquet:
            pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'natsproxy[spark]'")
        reader = open_capture(write(tmp_path / "a.ncap", items))
        with (
            pytest.raises(CaptureError, match="cannot write it: No space left"),
            output(tmp_path / "out", reader),
            Path("/dev/full").open("wb", buffering=0) as full,
        ):
            form(reader, full, Query())
