"""Captures as Parquet: Spark's table `frames` in one file.

Memory does not grow with the capture: one block and one row group.  pyarrow (the extra `spark`) is imported
only when an export begins, so the command line works without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.errors import CaptureError

if TYPE_CHECKING:
    import pyarrow as pa

NO_ARROW: Final = "Parquet needs pyarrow: pip install 'natsproxy[spark]'"


def parquet(reader: CaptureReader, out: IO[bytes], query: Query, payload: int = -1) -> int:
    """Write the frames that match `query` as Spark's table `frames`; return their number.

    payload: bytes of each payload (0 none, -1 all).  Raises CaptureError where pyarrow is not installed.
    """
    try:
        from natsproxy.capture.export.parquet_file import FramesFile
    except ImportError:
        raise CaptureError(NO_ARROW) from None
    with FramesFile(out) as file:
        for made in _batches(reader, query, payload):
            file.add(made)
    return file.rows


def _batches(reader: CaptureReader, query: Query, payload: int) -> Iterator[pa.RecordBatch]:
    from natsproxy.capture.columns.arrow import batch

    for file in reader.files():
        for ref in file.blocks():
            if query.wants_block(ref):
                yield batch(file, ref, payload=payload, query=query)
