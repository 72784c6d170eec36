"""Paths of captures: on this machine, and on stores that only `pyarrow.fs` reads."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from natsproxy.capture.format.blocks import Block, BlockKind
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError
from tests.spark.growing_captures import make

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql.types import StructType

from natsproxy.spark.jobs.analyze import SOURCE_OPTIONS
from natsproxy.spark.source import object_stores
from natsproxy.spark.source.data_source import NatscapReader, plan
from natsproxy.spark.source.object_stores import AT_ONCE, file_system
from natsproxy.spark.source.options import parse
from natsproxy.spark.source.paths import listing, segments
from natsproxy.spark.source.stream import NatscapStream
from natsproxy.spark.source.survey import survey
from natsproxy.spark.storage import executor_writer
from natsproxy.spark.storage.executor_writer import write_partition
from tests.spark.counting_store import CountingStore

pytestmark = pytest.mark.spark
ROW = StructType().add("segment", "integer").add("block_off", "long").add("idx", "integer")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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
    file_system.cache_clear()
    yield root
    file_system.cache_clear()


def rows(place: str) -> list[tuple[Any, ...]]:
    """Return the rows that the data source finds at a place."""
    reader = NatscapReader(ROW, parse({"path": place, "partitionBytes": "1"}))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/a",
        "s3a://bucket/a/",
        "s3n://bucket/a/*.ncap",
        "s3://bucket/*/2*.ncap?region=x",
        "s3://bucket/?/*-?.ncap",
        "s3://bucket/?/*-[01].ncap?region=x&scheme=http",
    ],
)
def test_an_object_store_is_read_as_a_folder_is(bucket: Path, address: str) -> None:
    """A folder, a glob; Hadoop's names for S3; the part after `?` goes to every object's address."""
    make(bucket / "a", b"a", [[3, 4], [5]])
    (bucket / "a" / "notes.txt").write_text("no capture")
    local = rows(str(bucket / "a"))
    assert len(local) == 12
    assert rows(address) == local
    names = listing(address)
    assert [name.partition("?")[0].startswith("s3://bucket/a/2026") for name in names] == [True, True]
    settings = address[address.find("?region") :] if "?region" in address else ""
    assert all(name.endswith(f".ncap{settings}") for name in names)
    assert rows(names[0]) == [row for row in local if row[0] == 0]


def test_a_question_mark_in_a_name(bucket: Path) -> None:
    """Percent-encoded it means itself, in folders and in names that a listing gives."""
    make(bucket / "why?", b"a", [[3, 4]])
    make(bucket / "whys", b"b", [[1]])
    (name,) = listing("s3://bucket/why%3F")
    assert name.startswith("s3://bucket/why%3F/2026")
    assert rows(name) == rows("s3://bucket/why%3F") == rows(str(bucket / "why?"))
    assert len(listing("s3://bucket/why?/*.ncap")) == 2


@pytest.mark.parametrize(("whole", "requests"), [(1 << 20, 2), (1, 3)])
def test_the_requests_of_a_plan(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, whole: int, requests: int
) -> None:
    """Many objects at once, of a small one all with one request, of a large one both ends."""
    make(bucket / "a", b"a", [[3, 4]] * AT_ONCE)
    together = threading.Barrier(AT_ONCE)  # none passes before so many objects are opened at once
    store = CountingStore(bucket.parent, lambda: together.wait(60))
    monkeypatch.setattr(object_stores, "file_system", lambda _: (store, "bucket"))
    monkeypatch.setattr(object_stores, "_WHOLE", whole)
    monkeypatch.setattr(object_stores, "_END", 400)
    assert len(survey(["s3://bucket/a"])) == AT_ONCE
    assert list(store.requests.values()) == [requests] * AT_ONCE
    assert store.most == AT_ONCE


def test_both_tables_come_of_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is opened once for its frames and its items, and each of its blocks is read once."""
    make(tmp_path / "a", b"a", [[3, 4], [5]])
    opened, read = Counter[str](), Counter[tuple[str, int]]()
    opening, reading = object_stores._open, CaptureFile.read

    def count(place: str) -> Any:
        opened[place] += 1
        return opening(place)

    def counted(file: CaptureFile, block: Block) -> tuple[bytes, bytes]:
        if block.kind == BlockKind.RECORDS:
            read[str(file.path), block.offset] += 1
        return reading(file, block)

    paths = json.dumps([f"file://{tmp_path}/a"])
    options = executor_writer.parsed(
        {name: {**given, "paths": paths} for name, given in SOURCE_OPTIONS.items()}
    )
    partitions = plan(options["frames"])
    monkeypatch.setattr(object_stores, "_open", count)
    monkeypatch.setattr(CaptureFile, "read", counted)
    files = [file for part in partitions for file in write_partition(part, options, tmp_path)]
    assert {file.folder.split("/")[0]: file.rows for file in files} == {"frames": 12}
    assert (list(opened.values()), list(read.values())) == ([1, 1], [1, 1, 1])


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
        survey([place])
    assert str(error.value).startswith(sentence)


def test_a_last_segment_that_has_not_begun_is_passed_over(tmp_path: Path) -> None:
    """Unless there is nothing else."""
    made = make(tmp_path / "a", b"a", [[1]])
    (tmp_path / "a" / f"20270101T000000000Z-{'61' * 16}-1.ncap").write_bytes(b"")
    found = survey([str(tmp_path / "a")])
    assert [file.size for file in found] == [path.stat().st_size for path in made]
    assert len(segments(str(tmp_path / "a"))) == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x-0.ncap").write_bytes(b"")
    with pytest.raises(CaptureError, match=r"x-0\.ncap: the file ends before its first block"):
        survey([str(tmp_path / "b")])
