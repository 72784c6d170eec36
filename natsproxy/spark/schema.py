"""The written schemas of the tables: column names and Spark SQL types, as DDL."""

from __future__ import annotations

from typing import Final

from natsproxy.capture.columns import FIELDS

FRAMES: Final = ", ".join(f"{name} {kind}" for name, (kind, _) in FIELDS.items())
"""One row per frame; the columns are explained in `natsproxy/capture/columns.py`."""

ITEMS: Final = (
    "recorder string, segment int, block_off bigint, t_ns bigint, conn_id bigint, kind string, info string"
)
"""One row per item that is no frame: open, close, firing, gap, preamble, note; info is JSON."""
