"""A Parquet file of frames, for `capture export --parquet` and for each task of `analyze`.

Needs pyarrow (the extra `spark`).
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from natsproxy.capture.columns import arrow

if TYPE_CHECKING:
    from types import TracebackType

GROUP_ROWS: Final = 1 << 18
GROUP_BYTES: Final = 64 << 20
"""The rows, and the bytes, at which a row group is written; they bound the memory of an open file."""

_RISING: Final = ("idx", "t_ns", "ts", "in_ordinal", "out_ordinal")
"""Numbers that increase from row to row, stored as small deltas."""
_VARIED: Final = ("subject", "reply", "headers", "payload", "args", "err")
"""Texts with many values, for which a dictionary would fill up and be abandoned."""


class FramesFile:
    """A file of frames that is being written; a context manager, which ends the file.

    out: a path, or an open file, which stays open.  rows: frames written so far.  Raises OSError where
    writing fails.
    """

    def __init__(self, out: Path | IO[bytes]) -> None:
        self.rows = 0
        schema = arrow.schema()
        self._writer = pq.ParquetWriter(
            out,
            schema,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in (*_RISING, *_VARIED)],
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
        )
        self._group: list[pa.RecordBatch] = []
        self._size = self._waiting = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add frames, with all columns (`arrow.batch`)."""
        self.rows += batch.num_rows
        self._group.append(batch)
        self._waiting += batch.num_rows
        self._size += batch.nbytes
        if self._waiting >= GROUP_ROWS or self._size >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._group), self._waiting)
        self._group, self._size, self._waiting = [], 0, 0

    def __enter__(self) -> FramesFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
