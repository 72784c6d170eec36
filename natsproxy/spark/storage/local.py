"""A local folder of tables: locked, listed, written and counted without Spark.

To Spark each of these is a job, of a second or so on a small capture.  The files are those that Spark would
write, and it can read them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natsproxy.errors import NatsproxyError

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = re.compile(r"part-|_|\.|date=|hour=|\w+\.zst\.parquet$")
"""The names that Spark and Sail write into a table."""
_BATCH = 1 << 17  # rows


@contextmanager
def locked(out: str) -> Iterator[None]:
    """Make a folder and lock it; the lock ends with this process, even if it is killed."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise NatsproxyError(f"{out}: cannot write there: {error.strerror}") from None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise NatsproxyError(f"{out}: another analysis is writing there") from None
            # else a network file system without such locks: a second run is not prevented there
        yield
    finally:
        os.close(folder)


def remove_tables(out: str, names: Iterable[str]) -> None:
    """Remove the tables of an earlier run.  Raises NatsproxyError for a folder that is not a table."""
    found = [folder for folder in (Path(out, name) for name in sorted(names)) if folder.exists()]
    for folder in found:
        if not folder.is_dir() or not all(NAMES.match(path.name) for path in folder.iterdir()):
            raise NatsproxyError(f"{folder} is not a table of an analysis: choose another folder")
    for folder in found:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise NatsproxyError(f"{folder}: cannot remove it: {error.strerror}") from None


def write_table(rows: pa.Table, folder: str) -> None:
    """Write rows as a complete table."""
    try:
        Path(folder).mkdir(exist_ok=True)
        write_file(rows, Path(folder, part_name()))
        finish(Path(folder))
    except OSError as error:
        raise write_error(folder, error) from None


def write_file(rows: pa.Table, path: Path | BytesIO) -> None:
    """Write rows as a Parquet file whose columns are all nullable, as in Spark's files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema])), path, compression="zstd"
    )


def part_name() -> str:
    """Return a name for a new file of a table."""
    return f"part-{uuid.uuid4()}.zstd.parquet"


def count(folder: str) -> int | None:
    """Return the number of rows of a table, from the footers of its files; None if there is no file."""
    import pyarrow.parquet as pq

    rows = [pq.read_metadata(file).num_rows for file in Path(folder).rglob("*.parquet")]
    return sum(rows) if rows else None


def values(folder: str, column: str) -> set[str]:
    """Return the distinct texts in a column of a table."""
    import pyarrow.parquet as pq

    found = set[str]()
    for path in Path(folder).rglob("*.parquet"):
        with pq.ParquetFile(path, read_dictionary=[column]) as file:
            for batch in file.iter_batches(_BATCH, columns=[column]):
                found.update(batch.column(0).unique().to_pylist())
    return found - {None}


def beginnings(folder: str, column: str, most: int, without: str) -> set[str] | None:
    """Return the distinct first tokens of subjects in a column, None if there are more than `most`.

    without: the beginning of subjects that do not count.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found = set[str]()
    for path in Path(folder).rglob("*.parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH, columns=[column]):
                subjects = batch.column(0).drop_null()
                subjects = subjects.filter(pc.invert(pc.starts_with(subjects, without)))
                first = pc.extract_regex(subjects, r"(?s)^(?P<token>[^.]*)")
                found.update(pc.struct_field(first, "token").unique().to_pylist())
                if len(found) > most:
                    return None
    return found


def read_list(folder: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of all files of a list; none if there is no list.

    Raises NatsproxyError for a file that is not a list, or that cannot be read.
    """
    for file in Path(folder).glob("part-*.json"):
        try:
            yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            continue  # a watch removes old versions of its list
        except OSError as error:
            raise NatsproxyError(f"{file}: cannot read it: {error.strerror}") from None
        except ValueError:
            raise NatsproxyError(f"{file} is not a list of an analysis") from None


def write_list(rows: Iterable[Mapping[str, Any]], folder: str) -> None:
    """Write a list, replacing the existing one."""
    part = Path(folder, ".part")
    try:
        Path(folder).mkdir(exist_ok=True)
        part.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        part.replace(Path(folder, "part-0.json"))
    except OSError as error:
        raise write_error(folder, error) from None


def finish(folder: Path) -> None:
    """Mark a table as complete, as Spark does."""
    (folder / "_SUCCESS").touch()


def write_error(place: str | Path, error: OSError) -> NatsproxyError:
    """Return the error for a failed write."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return NatsproxyError(f"{place}: cannot write there: {text}")
