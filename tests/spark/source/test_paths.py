"""Paths of captures: on this machine, and on stores that only `pyarrow.fs` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import CaptureError
from tests.spark.growing_captures import make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql.types import StructType

from natsproxy.spark.source.data_source import NatscapReader
from natsproxy.spark.source.options import parse
from natsproxy.spark.source.paths import begun, listing, segments
from natsproxy.spark.source.stream import NatscapStream

pytestmark = pytest.mark.spark
ROW = StructType().add("segment", "integer").add("block_off", "long").add("idx", "integer")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the object store `s3://bucket`; credentials play no part."""
    root = tmp_path / "store" / "bucket"
    root.mkdir(parents=True)

    class Stores:
        @staticmethod
        def from_uri(uri: str) -> tuple[Any, str]:
            scheme, _, rest = uri.partition("://")
            if scheme != "s3":
                raise ValueError(f"there is no {scheme} here")
            return SubTreeFileSystem(str(root.parent), LocalFileSystem()), rest.partition("?")[0]

    monkeypatch.setattr("pyarrow.fs.FileSystem", Stores)
    return root


def rows(place: str) -> list[tuple[Any, ...]]:
    """Return the rows that the data source finds at a place."""
    reader = NatscapReader(ROW, parse({"path": place, "partitionBytes": "1"}))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "address", ["s3://bucket/a", "s3a://bucket/a/", "s3n://bucket/a/*.ncap", "s3://bucket/*/6*.ncap?region=x"]
)
def test_an_object_store_is_read_as_a_folder_is(bucket: Path, address: str) -> None:
    """A folder, a glob; Hadoop's names for S3; the part after `?` goes to every object's address."""
    make(bucket / "a", b"a", [[3, 4], [5]])
    (bucket / "a" / "notes.txt").write_text("no capture")
    local = rows(str(bucket / "a"))
    assert len(local) == 12
    assert rows(address) == local
    names = listing(address)
    assert [name.partition("?")[0].startswith("s3://bucket/a/6161") for name in names] == [True, True]
    assert [name.partition("?")[2] for name in names] == [address.partition("?")[2]] * 2
    assert rows(names[0]) == [row for row in local if row[0] == 0]


def test_an_object_store_is_a_stream_too(bucket: Path) -> None:
    """Closed segments that are uploaded one after another."""
    first, second = make(bucket / "made", b"a", [[3], [5]])
    (bucket / "up").mkdir()
    stream = NatscapStream(ROW, parse({"path": "s3://bucket/up"}))
    offset, counts = stream.initialOffset(), []
    for segment in (first, second):
        (bucket / "up" / segment.name).write_bytes(segment.read_bytes())
        end = stream.latestOffset(offset, stream.getDefaultReadLimit())
        batches = [batch for part in stream.partitions(offset, end) for batch in stream.read(part)]
        counts.append(sum(batch.num_rows for batch in batches))
        offset = end
    assert counts == [3, 5]


def test_file_addresses_are_pyarrows_own(tmp_path: Path) -> None:
    """Nothing is replaced here: `file://` through the real library, with a space in the name."""
    folder = tmp_path / "a folder"
    make(folder, b"a", [[3, 4]])
    assert rows(f"file://{folder}".replace(" ", "%20")) == rows(str(folder))


def test_several_folders_deep(tmp_path: Path) -> None:
    """A glob over folders; segments in their order, whatever their folders are called."""
    (last,) = make(tmp_path / "x", b"b", [[1]])
    (first,) = make(tmp_path / "y", b"a", [[1]])
    assert listing(str(tmp_path / "*" / "*.ncap")) == [str(first), str(last)]
    assert open_capture(tmp_path / "x")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("s3://bucket/none", "s3://bucket/none: there is no capture here"),
        ("s3://bucket/empty", "s3://bucket/empty: there is no capture here"),
        ("s3://bucket/other.ncap", "s3://bucket/other.ncap: this is not a natsproxy capture"),
        ("gs://bucket/a", "gs://bucket/a: this address cannot be used: there is no gs here"),
    ],
)
def test_errors_name_the_address(bucket: Path, place: str, sentence: str) -> None:
    """As of local files."""
    (bucket / "empty").mkdir()
    (bucket / "other.ncap").write_bytes(b"something else entirely")
    with pytest.raises(CaptureError) as error:
        begun([place])
    assert str(error.value).startswith(sentence)


def test_a_last_segment_that_has_not_begun_is_passed_over(tmp_path: Path) -> None:
    """Unless there is nothing else."""
    made = make(tmp_path / "a", b"a", [[1]])
    (tmp_path / "a" / f"{'61' * 16}-1.ncap").write_bytes(b"")
    found = begun([str(tmp_path / "a")])
    assert [file.size for file in found] == [path.stat().st_size for path in made]
    assert len(segments(str(tmp_path / "a"))) == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x-0.ncap").write_bytes(b"")
    with pytest.raises(CaptureError, match=r"x-0\.ncap: the file ends before its first block"):
        begun([str(tmp_path / "b")])
