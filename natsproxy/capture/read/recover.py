"""Recovery of a damaged capture: all whole blocks, in a new file with a new index.

The blocks are found by walking from header to header.  Where the walk fails, it resumes at the next sync
mark whose block has the right checksum: a sync mark alone may be part of a payload.  The file is mapped, and
its pages are released after the walk: memory does not grow with the file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from natsproxy.capture.format.blocks import (
    HEADER,
    MAGIC,
    SYNC,
    ZSTD,
    Block,
    BlockKind,
    check,
    parse_header,
    parse_summary,
    unpack,
)
from natsproxy.capture.read.segment import segment_of, unreadable
from natsproxy.capture.text.compiled import compiled
from natsproxy.capture.text.statements import MAGIC as TEXT
from natsproxy.capture.write.index import Index
from natsproxy.errors import CaptureError

_WINDOW = 16 << 20  # bytes of the file that stay in memory


@dataclass(slots=True)
class Recovery:
    """The result: the items kept, and the damage.

    lost: bytes that belong to no whole block.  closed: the file ends with its index.  segment: it has a
    segment header.
    """

    blocks: int = 0
    items: int = 0
    frames: int = 0
    lost: int = 0
    closed: bool = False
    segment: bool = False

    @property
    def whole(self) -> bool:
        """True where nothing is missing."""
        return self.closed and self.segment and not self.lost


def scan(data: mmap.mmap | bytes, path: Path | None = None) -> Iterator[Block | int]:
    """Yield the whole blocks of a damaged file in order, and the number of lost bytes between them."""
    offset = len(MAGIC) if data[: len(MAGIC)] == MAGIC else 0
    while offset < len(data):
        block = _whole_block(data, offset, path)
        if block is not None:
            yield block
            offset = block.end
            continue
        if data[offset : offset + 4] == b"NEND" and len(data) - offset == 16:
            return
        found = data.find(SYNC, offset + 1)
        following = found if found >= 0 else len(data)
        yield following - offset
        offset = following


def _whole_block(data: mmap.mmap | bytes, offset: int, path: Path | None) -> Block | None:
    raw = data[offset : offset + HEADER.size]
    if len(raw) < HEADER.size:
        return None
    try:
        block = parse_header(raw, offset, path)
        middle = offset + HEADER.size + block.summary_size
        if block.end > len(data):
            return None
        check(block, data[offset + HEADER.size : middle], data[middle : block.end], path)
    except CaptureError:
        return None
    return block


def verify(path: Path) -> Recovery:
    """Count the whole blocks of a capture file and its damage, without writing anything."""
    return _walk(path, None)


def recover(source: Path, target: Path) -> Recovery:
    """Write the whole blocks of `source` to `target`, with an index.

    The target appears when it is complete.  Without a segment header nothing can be saved, and it does not
    appear.  Raises CaptureError where the source cannot be read or is of a newer format, or the target not
    written.
    """
    if target.exists():
        raise CaptureError("it exists already: give another name", path=target)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as out:
            result = _walk(source, out)
        if result.segment:
            part.replace(target)
    except OSError as error:
        raise CaptureError(f"cannot write it: {error.strerror}", path=target) from None
    finally:
        part.unlink(missing_ok=True)
    return result


def _walk(source: Path, out: BinaryIO | None) -> Recovery:
    try:
        with source.open("rb") as file:
            text = file.read(len(TEXT)) == TEXT
            file.seek(0)
            with compiled(file, source) if text else nullcontext(file) as binary:
                size = os.fstat(binary.fileno()).st_size
                data = mmap.mmap(binary.fileno(), 0, access=mmap.ACCESS_READ) if size else None
    except OSError as error:
        raise unreadable(error, source) from None
    if data is None:
        return Recovery()
    with data:
        return _each(data, source, out)


def _each(data: mmap.mmap, source: Path, out: BinaryIO | None) -> Recovery:
    result = Recovery()
    index = Index(0)
    written = gone = 0
    for found in scan(data, source):
        if isinstance(found, int):
            result.lost += found
            continue
        result.closed = found.kind == BlockKind.INDEX
        middle = found.offset + HEADER.size + found.summary_size
        if found.kind == BlockKind.SEGMENT:
            segment_of(unpack(data[middle : found.end], source, found.offset), source)
            if out is not None and not result.segment:
                written = out.write(MAGIC)
            result.segment = True
        if found.kind == BlockKind.RECORDS and not found.flags & ~ZSTD:
            raw = data[found.offset + HEADER.size : middle]
            index.add(written, raw, parse_summary(raw, source, found.offset))
        if out is not None and result.segment and found.kind != BlockKind.INDEX:
            written += out.write(data[found.offset : found.end])
        if found.end - gone > _WINDOW:
            gone = _let_go(data, gone, found.end)
    if out is not None and result.segment:
        out.writelines(index.ending(written))
    result.blocks, result.items, result.frames = index.blocks, index.items, index.frames
    return result


def _let_go(data: mmap.mmap, start: int, end: int) -> int:
    """Release the mapped pages between two offsets; return the offset of the first page kept."""
    end -= end % mmap.PAGESIZE
    if hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, start, end - start)
    return end
