"""The manifest of a watch: its lists are on disk before they count, and an unreadable one is an error."""

from __future__ import annotations

from io import BytesIO
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from natsproxy.errors import NatsproxyError

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

from natsproxy.spark.storage.folder import Folder
from natsproxy.spark.storage.manifest import Manifest
from natsproxy.spark.storage.watch_state import FORMAT, BatchRange, WholeTable
from natsproxy.spark.watch.ingest import Ingest
from natsproxy.spark.watch.job import remove_unlisted
from natsproxy.spark.watch.refresh import Refresh


class Memory:
    """A folder in memory; `full` refuses every write."""

    root = "mem"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.full = False

    def names(self, place: str = "") -> list[str]:
        below = f"{place}/" if place else ""
        found = {name.removeprefix(below).split("/")[0] for name in self.files if name.startswith(below)}
        return sorted(found)

    def read(self, place: str) -> str:
        return self.files[place].decode()

    def write(self, place: str, content: bytes) -> None:
        if self.full:
            raise NatsproxyError("no space")
        self.files[place] = content

    def remove(self, place: str) -> None:
        self.files.pop(place, None)


def opened(memory: Memory) -> Manifest:
    return Manifest(cast(Folder, memory))


def kept(memory: Memory) -> str:
    """Keep two versions of a list; return the place of the newest."""
    manifest = opened(memory)
    for batch in (0, 1):
        with manifest.change() as state:
            state.add_batch("frames", batch, None, [], 0)
    return sorted(memory.files)[-1]


def test_a_change_that_is_not_on_disk_does_not_count() -> None:
    """A batch that is in no list on disk is taken again."""
    memory = Memory()
    manifest = opened(memory)
    memory.full = True
    with pytest.raises(NatsproxyError, match="no space"), manifest.change() as state:
        state.add_batch("frames", 0, None, [], 0)
    assert (manifest.state.taken["frames"], manifest.state.version) == (-1, 0)
    memory.full = False
    with manifest.change() as state:
        state.add_batch("frames", 0, None, [], 0)
    assert opened(memory).state == manifest.state
    assert manifest.state.taken["frames"] == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('\\"touched\\"', '\\"renamed\\"'),
        (f'\\"format\\":{FORMAT}', f'\\"format\\":{FORMAT - 1}'),
        (f'\\"format\\":{FORMAT},', ""),  # the first lists have no format
        ('"state"', '"other"'),
        ("}\n", "\n"),
    ],
    ids=["renamed", "older", "no format", "no state", "torn"],
)
def test_a_list_that_cannot_be_read_is_refused(old: str, new: str) -> None:
    """An older one does not take its place: folders that it does not name would be removed."""
    memory = Memory()
    newest = kept(memory)
    assert old.encode() in memory.files[newest]
    memory.files[newest] = memory.files[newest].replace(old.encode(), new.encode())
    with pytest.raises(NatsproxyError, match=f"mem/{newest} is incomplete, or of another version"):
        opened(memory)


@pytest.mark.parametrize("place", ["_checkpoint/frames/metadata", "items/batches=00000000-00000000/x"])
def test_data_without_a_list_is_refused(place: str) -> None:
    """Nothing would name it."""
    memory = Memory()
    memory.files[place] = b""
    with pytest.raises(NatsproxyError, match="no list in analysis"):
        opened(memory)


class _Hadoop:
    """A file system that renames nothing, or has the file already."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def create(self, path: str, overwrite: bool) -> Any:
        return self

    def write(self, data: bytearray) -> None:
        assert data

    def close(self) -> None:
        self.closed = True

    def exists(self, path: str) -> bool:
        return self.there

    def rename(self, old: str, new: str) -> bool:
        return False


@pytest.mark.parametrize(("there", "sentence"), [(True, "exists already"), (False, "cannot be renamed")])
def test_a_file_that_does_not_get_its_name_is_an_error(there: bool, sentence: str) -> None:
    """Hadoop raises nothing."""
    folder = object.__new__(Folder)
    folder.root, folder._fs = "mem", _Hadoop(there)
    folder._path = lambda place: place  # type: ignore[method-assign]
    with pytest.raises(NatsproxyError, match=sentence):
        folder.write("analysis/x", b"text")


def refresh_of(memory: Memory, *tables: str) -> Refresh:
    memory.make = lambda place: None  # type: ignore[attr-defined]
    folder = cast(Folder, memory)
    return Refresh(
        MagicMock(),
        folder,
        Manifest(folder),
        list(tables or ("requests",)),
        0,
        lambda: False,
        lambda name, rows: None,
        MagicMock(),
    )


def test_an_hour_does_not_count_while_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark removes the old files first: killed then, it is written again."""
    memory = Memory()
    manifest = opened(memory)
    with manifest.change() as state:
        state.select_tables(["requests"])
        state.hour_written("requests", 5, 0)
    during: list[set[int]] = []
    monkeypatch.setattr(
        Refresh, "_write_hour", lambda *_: during.append(opened(memory).state.hour_tables["requests"].done)
    )
    refresh_of(memory)._replace_hour(5, ["requests"])
    assert during == [set()]
    assert opened(memory).state.hour_tables["requests"].done == {5}


def test_a_table_before_the_first_rows_is_written_without_spark() -> None:
    """Its plan would take long, and the refresh that has rows would wait for nine times that."""
    import pyarrow.parquet as pq

    from natsproxy.spark.schema import TABLES

    memory = Memory()
    assert refresh_of(memory, "permissions").refresh() == []
    manifest = opened(memory)
    (place,) = (name for name in memory.files if name.startswith("permissions/as_of="))
    assert pq.read_table(BytesIO(memory.files[place])).num_rows == 0
    assert pq.read_schema(BytesIO(memory.files[place])).names == [
        column.split()[0] for column in TABLES["permissions"].split(", ")
    ]
    assert manifest.state.whole_tables["permissions"].rows == 0
    assert manifest.state.outdated_tables(["permissions"]) == []
    with manifest.change() as state:
        state.add_batch("items", 0, BatchRange(0, 0, "items/batches=0-0", 0, 1, 1, 0, 0), [], 0)
    assert manifest.state.outdated_tables(["permissions"]) == ["permissions"]


def test_an_hour_without_rows_has_a_file_without_rows() -> None:
    """Spark's dynamic overwriting leaves the old files, if there are no new ones."""
    import pyarrow.parquet as pq

    from natsproxy.spark.schema import TABLES

    memory = Memory()
    own = "requests/date=1970-01-01/hour=5"
    one = refresh_of(memory)
    removed: list[str] = []
    memory.remove = removed.append  # type: ignore[assignment, method-assign]
    memory.files[f"{own}/part-old.parquet"] = b""
    assert one._write_table_hour(MagicMock(), "requests", 5, "requests") == 0
    assert removed == [own]
    (written,) = (content for place, content in memory.files.items() if place.startswith(own) and content)
    table = pq.read_table(BytesIO(written))
    assert table.num_rows == 0
    assert table.column_names == [column.split()[0] for column in TABLES["requests"].split(", ")]


def test_left_over_files_of_a_kill_are_removed() -> None:
    """Half-written files of Spark, a table's first version that no list names, a list without its name."""
    memory = Memory()
    with opened(memory).change() as state:
        state.whole_tables["connections"] = WholeTable("connections/as_of=2", 0, 0)
    kept = ["connections/as_of=2", "requests/date=1970-01-01", *memory.files]
    left = ["requests/.spark-staging-1", "liveness/as_of=1", "connections/as_of=1", "analysis/.x.part"]
    memory.files |= dict.fromkeys(kept[:2] + left, b"") | memory.files
    remove_unlisted(cast(Folder, memory), opened(memory))
    assert sorted(memory.files) == sorted(kept)


def test_a_stream_that_has_ended_begins_again() -> None:
    """Whatever ended it."""
    memory = Memory()
    folder = cast(Folder, memory)
    stream = Ingest(MagicMock(), folder, opened(memory), "frames", [], 0, lambda table, rows: None)
    query = MagicMock()
    query.awaitTermination.return_value = True
    stream._query = query
    assert stream.poll(0)
    assert stream._query is None
