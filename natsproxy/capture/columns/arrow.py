"""A block of a capture as one Arrow batch: the decoder behind Spark's `frames` and Parquet files.

There are two decoders with the same answers: `_columns` (compiled: a walk over the block that fills Arrow
buffers) and `table.columns` (pure Python: lists).  The compiled one is used where it was built;
`NATSPROXY_PURE=1` or a machine without a C compiler chooses the other.  Tests compare the two.

Needs pyarrow (the extra `spark`), neither numpy nor pandas.  Bytes that are not UTF-8 are replaced in text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa

from natsproxy.capture.columns.compiled import decoder
from natsproxy.capture.columns.table import FIELDS, columns
from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.errors import CaptureError

COMPILED: Final = decoder is not None
"""True where the compiled decoder is in use."""

TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}
"""The Arrow type of each type that `table.FIELDS` names."""
TEXT_MAX: Final = 1 << 28
"""The most text of one column of a block, bytes.  No block that a recorder wrote has more.

A block has at most 64 MiB, and text of the wire grows at most threefold where it is not UTF-8; but a hostile
block can repeat the long name of a rule for every frame of a record.  32-bit offsets reach far beyond this.
"""
_CONSTANT: Final = ("recorder", "segment", "block_off")


def schema(names: Collection[str] = tuple(FIELDS)) -> pa.Schema:
    """Return the Arrow schema of the columns `names`; all of them without."""
    return pa.schema([(name, TYPES[FIELDS[name][0]]) for name in names])


def batch(
    file: CaptureFile,
    ref: BlockRef,
    names: Collection[str] = tuple(FIELDS),
    *,
    payload: int = 0,
    query: Query | None = None,
) -> pa.RecordBatch:
    """Return the columns `names` of the frames of a block that match `query`.

    payload: bytes of each payload (0 none, -1 all).  Raises CaptureError for a damaged block.
    """
    made = None
    wanted = [name for name in names if name not in _CONSTANT]
    if decoder is not None and decoder.NAMES.issuperset(wanted):
        made = decoder.buffers(file.body(ref), ref, wanted, payload, query)
    if made is None:
        return pure_batch(file, ref, names, payload=payload, query=query)
    rows, found = made
    fields = schema(names)
    arrays = [
        _constant(field, ref, rows)
        if field.name in _CONSTANT
        else _array(field.type, rows, *found[field.name])
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def others(file: CaptureFile, ref: BlockRef) -> list[Item]:
    """Return the items of a block except its frames.  Raises CaptureError as `CaptureFile.items` does."""
    found = None if decoder is None else decoder.others(file.body(ref), ref)
    items = file.items(ref) if found is None else found[0]
    return [item for item in items if not isinstance(item, Frames)]


def _array(kind: pa.DataType, rows: int, nulls: int, bits: Any, offsets: Any, data: Any) -> pa.Array:
    """Wrap buffers without a copy.  bits: None where no value is absent.  offsets: None for numbers."""
    parts = [bits and pa.py_buffer(bits), *([pa.py_buffer(offsets)] if offsets else []), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, rows, parts, nulls)


def _constant(field: pa.Field, ref: BlockRef, rows: int) -> pa.Array:
    known = {
        "recorder": ref.segment.recorder.hex(),
        "segment": ref.segment.number,
        "block_off": ref.block.offset,
    }
    try:
        return pa.repeat(pa.scalar(known[field.name], field.type), rows)
    except (pa.ArrowException, OverflowError):
        raise _too_large(ref) from None


def pure_batch(
    file: CaptureFile,
    ref: BlockRef,
    names: Collection[str] = tuple(FIELDS),
    *,
    payload: int = 0,
    query: Query | None = None,
) -> pa.RecordBatch:
    """Return the batch that `batch` returns, made by the pure decoder."""
    found = columns(file, ref, names, payload=payload, query=query)
    fields = schema(names)
    for field in fields:
        if (
            field.type in (pa.string(), pa.binary())
            and sum(map(len, filter(None, found[field.name]))) > TEXT_MAX
        ):
            raise _too_large(ref)
    try:
        arrays = [pa.array(found[field.name], field.type) for field in fields]
    except (pa.ArrowException, OverflowError):
        raise _too_large(ref) from None
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _too_large(ref: BlockRef) -> CaptureError:
    text = "a block with a value that does not fit its column"
    return CaptureError(text, path=ref.segment.path, offset=ref.block.offset)
