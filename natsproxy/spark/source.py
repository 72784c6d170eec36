"""`spark.read.format("natscap")`: captures as a Spark data source, one Arrow batch per block.

Partitions are runs of neighbouring blocks of about `partitionBytes` (64 MiB).  Projection is the schema that
is asked for (`.schema("t_ns bigint, op string")`), pruning is by options:

    what      "frames" (default) or "items" (opens, closes, firings, gaps)
    from_ns, to_ns   wall clock, ns since 1970
    conn      connection ids, comma-separated      op      operations, comma-separated
    direction "c2s" or "s2c"                       subject patterns, comma-separated
    payload   bytes of each payload: 0 (default), N, or -1 for all
    mode      PERMISSIVE (default: a damaged block is one row with op `_corrupt`), DROPMALFORMED, FAILFAST

There is no `pushFilters`: in PySpark 4.3.0 it gives wrong results when a DataFrame is used twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from natsproxy.capture.columns import columns
from natsproxy.capture.reader import BlockRef, CaptureFile, open_capture
from natsproxy.capture.records import Frames
from natsproxy.capture.view import Query
from natsproxy.errors import CaptureError
from natsproxy.spark.schema import FRAMES, ITEMS
from natsproxy.wire.ops import ALL_OPS, BY_TOKEN, C2S, S2C, op_mask

PARTITION_BYTES = 64 << 20
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


@dataclass(frozen=True)
class BlockRun(InputPartition):
    """Blocks of one file, by the offsets of their headers."""

    path: str
    offsets: tuple[int, ...]

    def __init__(self, path: str, offsets: tuple[int, ...]) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "offsets", offsets)


class NatscapDataSource(DataSource):
    """The data source; Spark makes one for each read."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "natscap"

    def schema(self) -> str:
        """The full schema of what is asked for."""
        return ITEMS if self.options.get("what", "frames") == "items" else FRAMES

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        return NatscapReader(schema, dict(self.options))


class NatscapReader(DataSourceReader):
    """Plans partitions on the driver, reads blocks on the workers."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        options = {key.lower(): value for key, value in options.items()}
        self._schema = schema
        self._what = options.get("what", "frames")
        self._paths = _paths(options)
        self._query = query_of(options)
        self._payload = int(options.get("payload", "0"))
        self._bytes = int(options.get("partitionbytes", str(PARTITION_BYTES)))
        self._mode = options.get("mode", "PERMISSIVE").upper()
        if self._mode not in MODES:
            raise ValueError(f"mode {self._mode!r} is none of {', '.join(MODES)}")

    def partitions(self) -> list[InputPartition]:
        """Return runs of blocks that may hold what is asked for."""
        runs: list[InputPartition] = []
        for path in self._paths:
            for part in open_capture(path).paths:
                runs += self._plan(part)
        return runs

    def _plan(self, path: Path) -> Iterator[BlockRun]:
        offsets: list[int] = []
        size = 0
        with CaptureFile(path) as file:
            for ref in file.blocks():
                if not self._query.wants_block(ref):
                    continue
                offsets.append(ref.block.offset)
                size += ref.block.length
                if size >= self._bytes:
                    yield BlockRun(str(path), tuple(offsets))
                    offsets, size = [], 0
        if offsets:
            yield BlockRun(str(path), tuple(offsets))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield one Arrow batch per block."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, BlockRun):
            return
        schema: pa.Schema = to_arrow_schema(self._schema, timezone="UTC")
        with CaptureFile(Path(partition.path)) as file:
            for offset in partition.offsets:
                ref = next(file.blocks(offset))
                try:
                    found = self._columns(file, ref)
                except CaptureError as error:
                    if self._mode == "FAILFAST":
                        raise
                    found = self._corrupt(ref, error)
                arrays = [pa.array(found[field.name], field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _columns(self, file: CaptureFile, ref: BlockRef) -> dict[str, list[Any]]:
        if self._what == "items":
            return self._items(file, ref)
        return columns(file, ref, self._schema.names, payload=self._payload, keep=self._query.wants)

    def _items(self, file: CaptureFile, ref: BlockRef) -> dict[str, list[Any]]:
        rows = []
        for item in file.items(ref):
            if isinstance(item, Frames):
                continue
            info = {**getattr(item, "info", {}), "cause": getattr(item, "cause", None)}
            text = json.dumps(info, default=lambda raw: raw.decode("utf-8", "replace"))
            conn = getattr(item, "conn", None)
            rows.append((ref.segment.recorder.hex(), ref.segment.number, ref.block.offset,
                         ref.wall(item.t), conn, type(item).__name__.lower(), text))  # fmt: skip
        names = [part.split()[0] for part in ITEMS.split(", ")]
        full = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        return {name: full[name] for name in self._schema.names}

    def _corrupt(self, ref: BlockRef, error: CaptureError) -> dict[str, list[Any]]:
        if self._mode == "DROPMALFORMED" or self._what == "items":
            return {name: [] for name in self._schema.names}
        known = {
            "recorder": ref.segment.recorder.hex(), "segment": ref.segment.number, "idx": 0,
            "block_off": ref.block.offset, "op": "_corrupt", "err": str(error),
        }  # fmt: skip
        return {name: [known.get(name)] for name in self._schema.names}


def _paths(options: dict[str, str]) -> list[str]:
    if "paths" in options:  # load([...]) gives several, as JSON
        return [str(path) for path in json.loads(options["paths"])]
    if "path" not in options:
        raise ValueError('natscap needs a path: .load("traffic.ncap"), a folder of segments, or a glob')
    return [options["path"]]


def query_of(options: dict[str, str]) -> Query:
    """Return the query that lower-case options ask for."""
    lane = {"c2s": C2S, "s2c": S2C}.get(options.get("direction", ""))
    ops = ALL_OPS
    if options.get("op"):
        ops = op_mask(*(BY_TOKEN[name.strip().upper().encode()] for name in options["op"].split(",")))
    return Query(
        start=int(options["from_ns"]) if "from_ns" in options else None,
        end=int(options["to_ns"]) if "to_ns" in options else None,
        conns=frozenset(int(conn) for conn in options.get("conn", "").split(",") if conn),
        direction=lane,
        ops=ops,
        subjects=tuple(pattern.encode() for pattern in options.get("subject", "").split(",") if pattern),
    )
