"""The stored table `permissions`, read without Spark: writing a block starts no Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from natsproxy.errors import NatsproxyError
from natsproxy.permissions.rows import PermissionRow
from natsproxy.spark.storage import local, manifest

TABLE: Final = "permissions"


def read_rows(out: Path, tell: Callable[[str], object] = lambda text: None) -> Iterator[PermissionRow]:
    """Yield the rows of the table in a folder of tables.

    tell: called with a sentence where the table lacks rows of a watch that `frames` has already.  Raises
    NatsproxyError where the folder has no complete table `permissions`, or where a watch has not filled it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    listed = manifest.newest(local.read_list(str(out / manifest.LIST)))
    _check_age(out, listed, tell)
    places = [row.get("places") or [TABLE] for row in listed if row["table"] == TABLE]
    files = sorted((out / places[0][0]).rglob("*.parquet")) if places else []
    if not files:
        raise NatsproxyError(
            f"there is no complete table permissions in {out}: "
            "natsproxy analyze --tables permissions makes it"
        )
    try:
        for file in files:
            with pq.ParquetFile(file) as table:
                for batch in table.iter_batches(1_000, columns=list(PermissionRow._fields)):
                    yield from (PermissionRow(**row) for row in batch.to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise NatsproxyError(f"{out}: the table permissions cannot be read: {error}") from None


def _check_age(out: Path, listed: list[Mapping[str, Any]], tell: Callable[[str], object]) -> None:
    """Tell about rows of a watch that its table lacks.  Raises NatsproxyError if the table has none."""
    if not any(row["table"] == TABLE and row["written"] == "stream" for row in listed):
        return  # an analysis writes its tables together
    state = manifest.state_in(listed, str(out / manifest.LIST))
    if not state.whole_tables[TABLE].rows:
        raise NatsproxyError(
            f"{out}: the watch has not yet written rows into the table {TABLE}: "
            "wait for its next refresh, or stop it, which writes all tables"
        )
    if state.outdated_tables([TABLE]):
        tell(
            f"{out}: the watch has frames that came after it wrote the table {TABLE}: "
            "what was used only in these is missing here"
        )
