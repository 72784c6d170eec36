"""The stored table `permissions`, read without Spark: writing a block starts no Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from natsproxy.errors import NatsproxyError
from natsproxy.permissions.rows import Row
from natsproxy.spark.storage import local, manifest


def read_rows(out: Path) -> Iterator[Row]:
    """Yield the rows of the table in a folder of tables.

    Raises NatsproxyError where the folder has no complete table `permissions`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    listed = manifest.newest(local.read_list(str(out / manifest.LIST)))
    places = [row.get("places") or ["permissions"] for row in listed if row["table"] == "permissions"]
    files = sorted((out / places[0][0]).rglob("*.parquet")) if places else []
    if not files:
        raise NatsproxyError(
            f"there is no complete table permissions in {out}: "
            "natsproxy analyze --tables permissions makes it"
        )
    try:
        for file in files:
            with pq.ParquetFile(file) as table:
                for batch in table.iter_batches(1_000, columns=list(Row._fields)):
                    yield from (Row(**row) for row in batch.to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise NatsproxyError(f"{out}: the table permissions cannot be read: {error}") from None
