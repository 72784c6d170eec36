"""Blocks on disk: header, summary and checksum, as `recordings/FORMAT.md` specifies them.

The sixteen header bytes are packed and checked only here, for writer, reader and recovery.  The checksum is
zlib's CRC-32; `_crc.pyx` computes the same one faster, where it was built and the processor can.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from natsproxy.errors import CaptureError

MAGIC: Final = b"\x89NCAP\r\n\x1a"
SYNC: Final = b"NBLK"
END: Final = b"NEND"
VERSION: Final = (1, 1)
HEADER: Final = struct.Struct("<4sBBHII")
FOOTER: Final = struct.Struct("<4sIQ")
BODY_MAX: Final = 64 << 20
ZSTD: Final = 1
Parts = Sequence[bytes | bytearray | memoryview]
"""The pieces of a body, checked and written without joining them."""


crc32: Callable[..., int] = zlib.crc32
if os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    with suppress(ImportError):  # not built: zlib's serves
        from natsproxy.capture.format import _crc  # type: ignore[attr-defined, unused-ignore]

        crc32 = _crc.crc32 if _crc.AVAILABLE else zlib.crc32


class BlockKind(IntEnum):
    """The content of a block."""

    SEGMENT = 1
    RECORDS = 2
    INDEX = 3


class Block(NamedTuple):
    """A block's place and header: offset of its header in the file, sizes in bytes."""

    offset: int
    kind: int
    flags: int
    summary_size: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The offset of the next block."""
        return self.offset + HEADER.size + self.summary_size + self.length


class Summary(NamedTuple):
    """The summary of a records block; times relative to `mono0`, in ns."""

    mono0: int
    wall0: int
    t_first: int
    t_last: int
    items: int
    frames: int
    ops: int
    raw_length: int
    conns: tuple[int, ...] | None
    tokens: tuple[bytes, ...] | None


def header(kind: BlockKind, flags: int, summary: bytes, body: Parts, length: int) -> bytes:
    """Return the header of a block, its checksum computed over header, summary and body."""
    crc = _checksum(kind, flags, summary, body, length)
    return HEADER.pack(SYNC, kind, flags, len(summary), length, crc)


def _checksum(kind: int, flags: int, summary: bytes, body: Parts, length: int) -> int:
    crc = crc32(HEADER.pack(SYNC, kind, flags, len(summary), length, 0)[:12])
    crc = crc32(summary, crc)
    for part in body:
        crc = crc32(part, crc)
    return crc


def parse_header(raw: bytes, offset: int, path: Path | str | None = None) -> Block:
    """Return the block whose 16 header bytes are `raw`.  Raises CaptureError for an invalid one."""
    sync, kind, flags, summary, length, crc = HEADER.unpack(raw)
    if sync != SYNC:
        raise CaptureError("there is no block here: the capture is damaged", path=path, offset=offset)
    if length > BODY_MAX:
        text = f"a block of {length} bytes, more than a block may have"
        raise CaptureError(text, path=path, offset=offset)
    return Block(offset, kind, flags, summary, length, crc)


def footer_place(raw: bytes) -> int | None:
    """Return the offset of the index from the last 16 bytes of a file; None without a valid footer."""
    if len(raw) != FOOTER.size:
        return None
    mark, crc, place = FOOTER.unpack(raw)
    return int(place) if mark == END and zlib.crc32(raw[8:]) == crc else None


def check(block: Block, summary: bytes, body: bytes, path: Path | str | None = None) -> None:
    """Raise CaptureError unless the block's checksum is right."""
    if _checksum(block.kind, block.flags, summary, (body,), block.length) != block.crc:
        text = "the checksum of a block is wrong: its bytes were changed"
        raise CaptureError(text, path=path, offset=block.offset)


def unpack(raw: bytes, path: Path | str | None = None, offset: int | None = None) -> Any:
    """Return one msgpack value of hostile bytes: no extension types, sizes bounded by the input."""
    try:
        return msgpack.unpackb(raw, raw=False, strict_map_key=False, unicode_errors="replace")
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise CaptureError(f"msgpack that does not parse: {error}", path=path, offset=offset) from None


def parse_summary(raw: bytes, path: Path | str | None = None, offset: int | None = None) -> Summary:
    """Return the summary of a records block."""
    value = unpack(raw, path, offset)
    return summary_of(value, path, offset)


def summary_of(value: object, path: Path | str | None = None, offset: int | None = None) -> Summary:
    """Return the summary from its decoded array.  Raises CaptureError for a damaged one."""
    # Not `isinstance(..., int)`: a msgpack true is an int to Python.
    numbers = value[:8] if isinstance(value, list) and len(value) >= 10 else None
    if numbers is None or not all(type(number) is int for number in numbers):
        raise CaptureError("an invalid block summary", path=path, offset=offset)
    assert isinstance(value, list)
    conns, tokens = value[8], value[9]
    conns = tuple(conns) if isinstance(conns, list) and all(type(c) is int for c in conns) else None
    tokens = tuple(tokens) if isinstance(tokens, list) and all(type(t) is bytes for t in tokens) else None
    summary = Summary._make([*numbers, conns, tokens])
    if not 0 <= summary.raw_length <= BODY_MAX:
        raise CaptureError("a block that claims more than 64 MiB", path=path, offset=offset)
    return summary
