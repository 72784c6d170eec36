"""Arrow batches made from blocks of captures: the work of a Spark task.

A task gets one partition (`partitions.py`) and yields one Arrow batch for each of its blocks.  Batches of
frames are made by the decoder of captures, in the columns that Spark requests and no others.  Items (opens,
closes, firings, gaps) are few, so their rows are made in Python.

Damage never ends a task unless the option `mode` is FAILFAST: it becomes a row of its own, or no row.  A file
that was deleted after the read was planned is damage too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from natsproxy.capture.format.records import NAMES, Item
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError, MissingCapture
from natsproxy.spark.schema import ITEMS
from natsproxy.spark.source.options import Options
from natsproxy.spark.source.partitions import BlockPartition, BlockPlace, BlockRun
from natsproxy.spark.source.paths import open_segment
from natsproxy.spark.source.walk import NOT_READ, Damage

if TYPE_CHECKING:
    import pyarrow as pa

_ITEM_COLUMNS = [column.split() for column in ITEMS.split(", ")]


def arrow_schema(schema: StructType | pa.Schema) -> pa.Schema:
    """Return the requested columns as an Arrow schema, which Sail passes as such."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC") if isinstance(schema, StructType) else schema


def item_schema() -> pa.Schema:
    """Return all columns of items; a Spark task has no session that could parse their DDL."""
    import pyarrow as pa

    from natsproxy.capture.columns.arrow import TYPES

    return pa.schema([(name, TYPES[kind]) for name, kind in _ITEM_COLUMNS])


class Wanted(NamedTuple):
    """The rows requested of a partition: their columns, and the options of the read."""

    schema: pa.Schema
    options: Options


def read_partition(
    partition: InputPartition, schema: pa.Schema, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one partition, in the columns of `schema`; Spark's workers call it.

    Raises CaptureError as `read_together` does.
    """
    return (batch for _, batch in read_together(partition, [Wanted(schema, options)]))


def read_together(
    partition: InputPartition, wanted: Sequence[Wanted]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the Arrow batches of one partition for several tables.

    Each file is opened once, and each block is read once.  Each batch comes with the index of its table in
    `wanted`.  Raises CaptureError for a damaged block, or a segment that is gone, where `mode` is FAILFAST,
    and for a segment that cannot be opened.
    """
    if not isinstance(partition, BlockPartition):
        return  # Spark's placeholder if there are no partitions
    for run in partition.runs:
        yield from _read_run(run, wanted)


def _read_run(run: BlockRun, wanted: Sequence[Wanted]) -> Iterator[tuple[int, pa.RecordBatch]]:
    if run.offsets:
        try:
            file = open_segment(run.name)
        except MissingCapture as error:  # its recorder has deleted it since the read was planned
            for place, each in enumerate(wanted):
                yield from ((place, batch) for batch in _read_copies(run, error, each))
        else:
            with file:
                for offset in run.offsets:
                    for place, each in enumerate(wanted):
                        yield place, _read_block(run, file, offset, each)
    for damage in run.damage:
        for place, each in enumerate(wanted):
            yield place, _damage_batch(run, damage, each)


def _read_block(run: BlockRun, file: CaptureFile, offset: int, wanted: Wanted) -> pa.RecordBatch:
    """Return the batch of a block; if it is damaged, that of a copy, or the row that reports the damage."""
    try:
        return _block_batch(file, offset, wanted)
    except CaptureError as error:
        batch = _from_copies(run.copies.get(offset, ()), wanted)
        if batch is not None:
            return batch
        if wanted.options.mode == "FAILFAST":
            raise
        return _damage_batch(run, Damage(offset, offset, str(error)), wanted)


def _read_copies(run: BlockRun, error: MissingCapture, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the blocks of a deleted file that other files hold, and a row for all the rest."""
    lost: int | None = None
    for offset in run.offsets:
        batch = _from_copies(run.copies.get(offset, ()), wanted)
        if batch is not None:
            yield batch
        elif lost is None:
            lost = offset
    if lost is not None:
        if wanted.options.mode == "FAILFAST":
            raise error
        yield _damage_batch(run, Damage(lost, lost, str(error)), wanted)


def _from_copies(copies: tuple[BlockPlace, ...], wanted: Wanted) -> pa.RecordBatch | None:
    """Return the batch of the first intact copy of a block; None if there is none."""
    for name, offset in copies:
        with suppress(CaptureError), open_segment(name) as file:
            return _block_batch(file, offset, wanted)
    return None


def _block_batch(file: CaptureFile, offset: int, wanted: Wanted) -> pa.RecordBatch:
    from natsproxy.capture.columns.arrow import batch

    schema, options = wanted
    ref = file.records_at(offset)
    if options.what == "items":
        return _to_batch(_item_columns(file, ref), schema)
    made = batch(file, ref, schema.names, payload=options.payload, query=options.query)
    return made if made.schema.equals(schema) else made.cast(schema)


def _to_batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return an Arrow batch of columns; columns of the schema that are not given are NULL in every row."""
    import pyarrow as pa

    rows = max(map(len, columns.values()), default=0)
    arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _item_columns(file: CaptureFile, ref: BlockRef) -> dict[str, list[Any]]:
    from natsproxy.capture.columns.arrow import others

    rows = [_item_row(ref, item) for item in others(file, ref)]
    return {name: [row[place] for row in rows] for place, (name, _) in enumerate(_ITEM_COLUMNS)}


def _item_row(ref: BlockRef, item: Item) -> tuple[Any, ...]:
    info = {**getattr(item, "info", {}), "cause": getattr(item, "cause", None)}
    text = json.dumps(info, default=lambda raw: raw.decode("utf-8", "replace"))
    segment, conn = ref.segment, getattr(item, "conn", None)
    return (
        segment.recorder.hex(),
        segment.number,
        ref.block.offset,
        ref.wall(item.t),
        conn,
        NAMES[type(item)],
        text,
    )


def _damage_batch(run: BlockRun, damage: Damage, wanted: Wanted) -> pa.RecordBatch:
    """Return the row that reports damage; none with DROPMALFORMED."""
    schema, options = wanted
    if options.mode == "DROPMALFORMED":
        return _to_batch({}, schema)
    recorder, _, number = run.segment
    named = run.name in damage.reason  # also if the file is gone
    reason = damage.reason if named else str(CaptureError(damage.reason, path=run.name, offset=damage.offset))
    row: dict[str, Any] = {
        "recorder": recorder,
        "segment": number,
        "block_off": damage.offset,
        "idx": 0,
        "op": "_corrupt",
        "err": reason,
    }
    if options.what == "items":
        info = {"reason": f"{NOT_READ}{reason}", "bytes": damage.end - damage.offset}
        row |= {"kind": "gap", "t_ns": run.wall or None, "info": json.dumps(info)}
    return _to_batch({name: [value] for name, value in row.items()}, schema)
