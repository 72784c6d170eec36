"""The counts of a block: its frames by connection, op, subject template and rule, without an object for each.

They come from the columns of the compiled decoder where it was built, from those of the pure twin elsewhere;
neither needs pyarrow.  A capture is counted block by block, in the memory of one block.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from natsproxy.capture.columns.compiled import decoder
from natsproxy.capture.columns.table import FIELDS, columns
from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.wire.ops import Op, op_mask

_KEY: Final = ("conn_id", "op", "template", "cause")
_CONNECTS: Final = Query(ops=op_mask(Op.CONNECT))
_WIDTHS: Final[dict[str, Literal["q", "i"]]] = {"bigint": "q", "int": "i"}


class BlockCounts(NamedTuple):
    """The counts of a block.

    frames: their number by (connection, op, template, rule); op is None for one without a whole control line.
    size: their bytes.  connects: (connection, arguments of CONNECT).  others: the items other than frames.
    """

    frames: Counter[tuple[int, str | None, str | None, str | None]]
    size: int
    connects: list[tuple[int, str]]
    others: list[Item]


def count(file: CaptureFile, ref: BlockRef) -> BlockCounts:
    """Return the counts of a block.  Raises CaptureError for a damaged block."""
    frames = Counter(zip(*_lists(file, ref, _KEY, None), strict=True))
    connects: list[tuple[int, str]] = []
    if ref.summary.ops & _CONNECTS.ops:
        found = zip(*_lists(file, ref, ("conn_id", "args"), _CONNECTS), strict=True)
        connects = [(conn, args or "") for conn, args in found]  # None: a CONNECT of one word
    items, size = _items(file, ref)
    size += sum(len(item.data) for item in items if isinstance(item, Frames))
    return BlockCounts(frames, size, connects, [item for item in items if not isinstance(item, Frames)])


def _items(file: CaptureFile, ref: BlockRef) -> tuple[list[Item], int]:
    """Return the items except plain frames (some may remain), and the bytes of the frames left out."""
    found = None if decoder is None else decoder.others(file.body(ref), ref)
    return (list(file.items(ref)), 0) if found is None else found


def _lists(file: CaptureFile, ref: BlockRef, names: tuple[str, ...], query: Query | None) -> list[list[Any]]:
    """Return columns as lists."""
    made = None if decoder is None else decoder.buffers(file.body(ref), ref, names, 0, query)
    if made is None:
        found = columns(file, ref, names, query=query)
        return [found[name] for name in names]
    rows, buffers = made
    return [_values(rows, FIELDS[name][0], *buffers[name]) for name in names]


def _values(rows: int, kind: str, nulls: int, bits: bytes | None, offsets: Any, data: Any) -> list[Any]:
    """Return the values of Arrow buffers; bits and nulls tell where there is none."""
    if nulls == rows:
        return [None] * rows
    if kind in _WIDTHS:
        values: list[Any] = memoryview(data).cast(_WIDTHS[kind]).tolist()
    elif data.isascii():
        text = data.decode()
        values = [text[start:end] for start, end in pairwise(memoryview(offsets).cast("i"))]
    else:
        values = [data[start:end].decode() for start, end in pairwise(memoryview(offsets).cast("i"))]
    if nulls and bits is not None:
        return [value if bits[at >> 3] >> (at & 7) & 1 else None for at, value in enumerate(values)]
    return values
