"""`spark.read.format("natscap")`: captures as a Spark data source, one Arrow batch per block.

    spark.read.format("natscap").load("traffic.ncap")
    spark.read.format("natscap").option("op", "PUB,HPUB").schema("t_ns bigint, subject string").load("s3://b/x")
    spark.readStream.format("natscap").load("captures/")          (`natsproxy/spark/source/stream.py`)

Partitions are runs of neighbouring blocks of about 64 MiB.  Projection is the schema that is asked for:
only its columns are made.  Pruning is by options, all of them in `natsproxy/spark/source/options.py`.  The
columns
of frames are explained in `natsproxy/capture/columns/table.py`.

A damaged block, or bytes that are no block, are by `mode`: PERMISSIVE, one row with op `_corrupt` and the
reason in `err` (in items: a gap with that reason); DROPMALFORMED, no row; FAILFAST, an error that names
file and byte.

There is no `pushFilters`: in PySpark 4.3.0 it gives wrong results when a DataFrame is used twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from natsproxy.capture.format.records import Item
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError
from natsproxy.spark.schema import FRAMES, ITEMS
from natsproxy.spark.source.options import Options, parse
from natsproxy.spark.source.partitions import BlockRun, Damage, runs
from natsproxy.spark.source.paths import open_segment, readable, segments

if TYPE_CHECKING:
    import pyarrow as pa

    from natsproxy.spark.source.stream import NatscapStream


class NatscapDataSource(DataSource):
    """The data source; Spark makes one for each read."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "natscap"

    def schema(self) -> str:
        """The full schema of what is asked for."""
        return ITEMS if parse(self.options).what == "items" else FRAMES

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        return NatscapReader(schema, parse(self.options))

    def streamReader(self, schema: StructType) -> NatscapStream:
        """Return a reader of what is there and what will come."""
        from natsproxy.spark.source.stream import NatscapStream

        return NatscapStream(schema, parse(self.options))


class NatscapReader(DataSourceReader):
    """Plans partitions on the driver, reads blocks on the workers."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return runs of blocks that may hold what is asked for."""
        found: list[InputPartition] = []
        for place in self._options.paths:
            names = segments(place)
            begun = names if len(names) == 1 else readable(names)
            for name in begun:
                found += runs(name, self._options)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch per block."""
        return read_run(partition, arrow_schema(self._schema), self._options)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns that Spark asks for as Arrow has them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def read_run(partition: InputPartition, schema: pa.Schema, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a run of blocks, in the columns of `schema`; on a worker."""
    if not isinstance(partition, BlockRun):
        return  # Spark's stand-in where there are no partitions
    with open_segment(partition.name) as file:
        for offset in partition.offsets:
            try:
                ref = next(file.blocks(offset))
                found = _frames_or_items(file, ref, schema, options)
            except CaptureError as error:
                if options.mode == "FAILFAST":
                    raise
                found = _batch(_corrupt(file, Damage(offset, offset, str(error)), options), schema)
            yield found
        for damage in partition.damage:
            yield _batch(_corrupt(file, damage, options), schema)


def _frames_or_items(file: CaptureFile, ref: BlockRef, schema: pa.Schema, options: Options) -> pa.RecordBatch:
    from natsproxy.capture.columns.arrow import batch

    if options.what == "items":
        return _batch(_items(file, ref), schema)
    made = batch(file, ref, schema.names, payload=options.payload, query=options.query)
    return made if made.schema.equals(schema) else made.cast(schema)


def _batch(found: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    rows = max(map(len, found.values()), default=0)
    arrays = [pa.array(found.get(field.name, [None] * rows), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_ITEM_NAMES = [part.split()[0] for part in ITEMS.split(", ")]


def _items(file: CaptureFile, ref: BlockRef) -> dict[str, list[Any]]:
    from natsproxy.capture.columns.arrow import others

    rows = [_item(ref, item) for item in others(file, ref)]
    return {name: [row[place] for row in rows] for place, name in enumerate(_ITEM_NAMES)}


def _item(ref: BlockRef, item: Item) -> tuple[Any, ...]:
    info = {**getattr(item, "info", {}), "cause": getattr(item, "cause", None)}
    text = json.dumps(info, default=lambda raw: raw.decode("utf-8", "replace"))
    segment, conn = ref.segment, getattr(item, "conn", None)
    return (
        segment.recorder.hex(),
        segment.number,
        ref.block.offset,
        ref.wall(item.t),
        conn,
        type(item).__name__.lower(),
        text,
    )


def _corrupt(file: CaptureFile, damage: Damage, options: Options) -> dict[str, list[Any]]:
    """Return the row that stands for what could not be read; none with DROPMALFORMED."""
    if options.mode == "DROPMALFORMED":
        return {}
    segment = file.segment
    row: dict[str, Any] = {
        "recorder": segment.recorder.hex(),
        "segment": segment.number,
        "block_off": damage.offset,
        "idx": 0,
        "op": "_corrupt",
        "err": damage.reason,
    }
    if options.what == "items":
        info = {"reason": f"damaged: {damage.reason}", "bytes": damage.end - damage.offset}
        row |= {"kind": "gap", "t_ns": segment.wall, "info": json.dumps(info)}
    return {name: [value] for name, value in row.items()}
