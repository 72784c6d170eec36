"""One segment of a capture: its header, its blocks, its items.

A segment need not be a local file: `CaptureFile` also takes an open, seekable one, with a name for errors.
The index of a closed segment (`indexed`) lists all its blocks with two small reads, also from a remote store.

A text (`natsproxy/capture/text`) is converted to its binary form when it is opened.

Captures are hostile input.  Every length is checked before anything is allocated, msgpack is decoded without
extension types, nothing is executed, and every failure is a CaptureError that names file and offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import msgpack

from natsproxy.capture.format import records
from natsproxy.capture.format.blocks import (
    BODY_MAX,
    FOOTER,
    HEADER,
    MAGIC,
    SYNC,
    VERSION,
    ZSTD,
    Block,
    BlockKind,
    Summary,
    check,
    footer_place,
    parse_header,
    parse_summary,
    summary_of,
    unpack,
)
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.expansion import allowed, holds_more
from natsproxy.capture.text.statements import MAGIC as TEXT
from natsproxy.errors import (
    CaptureError,
    MissingCapture,
    ProtocolError,
    TruncatedCapture,
    UnreadableCapture,
)
from natsproxy.wire.ops import C2S, Direction
from natsproxy.wire.parse import frames as parse_frames

_STEP = 1 << 20  # bytes of a damaged file that are searched at once


@dataclass(frozen=True, slots=True)
class Segment:
    """The header of a segment, field by field as in `recordings/FORMAT.md`.

    path: the file, or the name of an object.  run: the position of its recorder's run among those of the
    capture that is read, by time, from 1.
    """

    path: Path | str
    recorder: bytes
    boot: bytes
    number: int
    wall: int
    mono: int
    seed: int | None
    rules: str | None
    natsproxy: str
    settings: dict[str, Any]
    run: int = 1

    def connection(self, number: int) -> ConnectionId:
        """Return the connection of a number in this segment."""
        return ConnectionId(self.recorder, self.run, number)


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A records block that can be read on its own."""

    segment: Segment
    block: Block
    summary: Summary

    def connection(self, item: records.Item) -> ConnectionId | None:
        """Return the connection of an item of this block, None for an item of no connection."""
        number = getattr(item, "conn", None)
        return None if number is None else self.segment.connection(number)

    def wall(self, t: int) -> int:
        """Return the wall clock (Unix ns) of a monotonic time of this block."""
        return self.summary.wall0 + t - self.summary.mono0


class CaptureFile:
    """One segment, open for reading; a context manager.

    file: an open, seekable file if the segment is not a local path; it is closed with this, and `path` is its
    name in errors.  left_out: the offsets of blocks that are skipped, since another file has them too.
    Raises CaptureError for a file that cannot be read or is not a capture.
    """

    def __init__(self, path: Path | str, file: IO[bytes] | None = None) -> None:
        self.path = path
        self.left_out = frozenset[int]()
        self._newest: tuple[BlockRef, bytes] | None = None  # the block that was read last, and its body
        try:
            self._file: IO[bytes] = file or Path(path).open("rb")  # noqa: SIM115 - closed by __exit__
            self._fixed = file.seek(0, os.SEEK_END) if file is not None else None
        except OSError as error:
            raise unreadable(error, path) from None
        try:
            if self._pull(0, len(TEXT)) == TEXT:
                self._compile()
            self.segment = self._read_segment()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> CaptureFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _compile(self) -> None:
        """Replace a text with its binary form."""
        # Imported where it is used: a proxy reads segments, and never a text.
        from natsproxy.capture.text.compiled import compiled

        with self._file as text:
            text.seek(0)
            self._file = compiled(text, self.path)
        self._fixed = self._file.seek(0, os.SEEK_END)

    def _read_segment(self) -> Segment:
        magic = self._pull(0, len(MAGIC))
        if magic != MAGIC:
            if MAGIC.startswith(magic):  # a recorder has just created it
                raise TruncatedCapture(
                    "the file ends before its first block", path=self.path, offset=len(magic)
                )
            raise CaptureError("this is not a natsproxy capture", path=self.path)
        block = self.block_at(len(MAGIC))
        if block is None or block.kind != BlockKind.SEGMENT:
            raise TruncatedCapture("there is no segment header", path=self.path, offset=len(MAGIC))
        value = unpack(self.read(block)[1], self.path, block.offset)
        return segment_of(value, self.path)

    def _pull(self, offset: int, size: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(size)
        except OSError as error:
            raise unreadable(error, self.path) from None

    def block_at(self, offset: int) -> Block | None:
        """Return the block whose header is at `offset`; None at the end (or where a block is cut short)."""
        raw = self._pull(offset, HEADER.size)
        if len(raw) < HEADER.size:
            return None
        if raw[:4] == b"NEND":  # the footer
            return None
        block = parse_header(raw, offset, self.path)
        return block if block.end <= self.size() else None

    def size(self) -> int:
        """The file's size now, in bytes.  Only local files grow."""
        return os.fstat(self._file.fileno()).st_size if self._fixed is None else self._fixed

    def indexed(self) -> list[BlockRef] | None:
        """Return the records blocks that the index of a closed segment lists; None without an index.

        Offset, `end` and summary of each are right; flags and checksum are in the block's own header, and
        `blocks(offset)` reads them from there.
        """
        size = self.size()
        raw = self._pull(max(0, size - FOOTER.size), FOOTER.size)
        place = footer_place(raw)
        block = self.block_at(place) if place is not None and place < size else None
        if block is None or block.kind != BlockKind.INDEX:
            return None
        rows = unpack(self.read(block)[1], self.path, block.offset)
        refs = _index_refs(rows, self.segment, block.offset)
        return refs and [ref for ref in refs if ref.block.offset not in self.left_out]

    def blocks(self, offset: int = len(MAGIC)) -> Iterator[BlockRef]:
        """Yield the records blocks from `offset` on, by their headers and summaries."""
        while (block := self.block_at(offset)) is not None:
            ref = self.ref(block)
            if ref is not None and block.offset not in self.left_out:
                yield ref
            offset = block.end

    def ref(self, block: Block) -> BlockRef | None:
        """Return a records block with its summary; None for one of another kind, its checksum checked."""
        if block.kind == BlockKind.RECORDS and not block.flags & ~ZSTD:
            raw = self._pull(block.offset + HEADER.size, block.summary_size)
            return BlockRef(self.segment, block, parse_summary(raw, self.path, block.offset))
        self.read(block)  # for its checksum: a skipped block must at least be undamaged
        return None

    def resume(self, offset: int) -> int | None:
        """Return the offset of the first whole block at or after `offset`; None if there is none.

        Its checksum is right: a sync mark alone may be part of a payload.
        """
        # The steps overlap by a sync mark less a byte, so a mark on their border is found.
        while raw := self._pull(offset, _STEP + len(SYNC) - 1):
            place = raw.find(SYNC)
            while place >= 0:
                with suppress(CaptureError):
                    block = self.block_at(offset + place)
                    if block is not None:
                        self.read(block)
                        return block.offset
                place = raw.find(SYNC, place + 1)
            offset += _STEP
        return None

    def read(self, block: Block) -> tuple[bytes, bytes]:
        """Return a block's summary and its stored body, checksum checked."""
        raw = self._pull(block.offset + HEADER.size, block.summary_size + block.length)
        if len(raw) < block.summary_size + block.length:
            raise TruncatedCapture("a block is cut short", path=self.path, offset=block.offset)
        summary, body = raw[: block.summary_size], raw[block.summary_size :]
        check(block, summary, body, self.path)
        return summary, body

    def records_at(self, offset: int) -> BlockRef:
        """Return the records block at `offset`, or the next one."""
        if self._newest is not None and self._newest[0].block.offset == offset:
            return self._newest[0]
        return next(self.blocks(offset))

    def body(self, ref: BlockRef) -> bytes:
        """Return the decompressed body of a records block; the last one is cached."""
        if self._newest is None or self._newest[0] is not ref:
            self._newest = ref, self._body(ref)
        return self._newest[1]

    def _body(self, ref: BlockRef) -> bytes:
        _, body = self.read(ref.block)
        if ref.block.flags & ZSTD:
            body = _decompress(body, ref.summary.raw_length, self.path, ref.block.offset)
        if len(body) != ref.summary.raw_length:
            text = "a block whose length differs from its summary"
            raise CaptureError(text, path=self.path, offset=ref.block.offset)
        if ref.block.flags & ZSTD:
            self._refuse_expansion(ref, body)
        return body

    def _refuse_expansion(self, ref: BlockRef, body: bytes) -> None:
        """Raise CaptureError for a compressed block that expands more than its size allows."""
        most = allowed(ref.block.length)
        if len(body) <= most:
            return
        # The values first: only a few are worth decoding.  The frames that a summary claims may be others.
        if holds_more(body, ref.summary.frames, most) or self._frames(ref, body, most) > most:
            text = (
                f"a compressed block of {ref.block.length} bytes that holds more than {most} values or frames"
            )
            raise CaptureError(text, path=self.path, offset=ref.block.offset)

    def _frames(self, ref: BlockRef, body: bytes, most: int) -> int:
        """Count the frames in a block's records and preambles, up to one more than `most`."""
        count = 0
        for item in decode_items(body, ref.summary.mono0, self.path, ref.block.offset):
            direction, data = _framed(item)
            with suppress(ProtocolError):  # reported when the record is read
                for _ in islice(parse_frames(data, direction), most + 1 - count):
                    count += 1
        return count

    def items(self, ref: BlockRef) -> Iterator[records.Item]:
        """Yield the items of a block; unknown kinds are skipped."""
        return decode_items(self.body(ref), ref.summary.mono0, self.path, ref.block.offset)


def _framed(item: records.Item) -> tuple[Direction, bytes]:
    """Return the bytes of an item that readers parse as whole frames, with their direction."""
    if isinstance(item, records.Frames) and not item.flags & ~records.Flags.REDACTED:
        return item.direction, bytes(item.data)
    connect = item.info.get("connect") if isinstance(item, records.Preamble) else None
    return C2S, connect if isinstance(connect, bytes) else b""


def unreadable(error: OSError, path: Path | str) -> UnreadableCapture:
    """Return the error of a segment that cannot be opened or read."""
    if isinstance(error, FileNotFoundError) and not os.path.lexists(path):  # nor is it a link to nothing
        return MissingCapture(
            "it was deleted before it was read (a larger --record-keep keeps it)", path=path
        )
    return UnreadableCapture(f"cannot read it: {error.strerror or error}", path=path)


def decode_items(
    body: bytes, mono0: int, path: Path | str | None = None, offset: int | None = None
) -> Iterator[records.Item]:
    """Yield the items of a block's body.  Raises CaptureError where the body is damaged."""
    unpacker = msgpack.Unpacker(
        raw=False,
        strict_map_key=False,
        unicode_errors="replace",
        max_buffer_size=max(1, len(body)),
        max_ext_len=0,
    )
    unpacker.feed(body)
    whole = 0
    try:
        for fields in unpacker:
            whole = unpacker.tell()
            item = records.decode(fields, mono0)
            if item is not None:
                yield item
    except CaptureError as error:
        raise CaptureError(str(error), path=path, offset=offset) from None
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise CaptureError(f"a block whose items do not parse: {error}", path=path, offset=offset) from None
    if whole != len(body):
        raise CaptureError("a block that ends inside an item", path=path, offset=offset)


def _index_refs(rows: object, segment: Segment, end: int) -> list[BlockRef] | None:
    """Return the blocks of an index whose own block begins at `end`; None for a damaged index."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) >= 3 for row in rows):
        return None
    # Increasing offsets before the index: a hostile index cannot send a reader in circles or beyond the file.
    offsets = [row[0] for row in rows]
    if not all(type(at) is int for at in offsets) or any(a >= b for a, b in pairwise([0, *offsets, end])):
        return None
    refs = []
    for row, following in zip(rows, [*offsets, end][1:], strict=True):
        if row[1] == BlockKind.RECORDS:
            block = Block(row[0], BlockKind.RECORDS, 0, 0, following - row[0] - HEADER.size, 0)
            refs.append(BlockRef(segment, block, summary_of(row[2], segment.path, row[0])))
    return refs


def segment_of(value: object, path: Path | str) -> Segment:
    """Return the segment that a decoded header describes; CaptureError for none, or of a newer format."""
    if not isinstance(value, dict):
        raise CaptureError("an invalid segment header", path=path)
    version = value.get("version")
    if not (isinstance(version, list) and version and type(version[0]) is int):
        raise CaptureError("a segment header without a version", path=path)
    if version[0] != VERSION[0]:  # a newer minor version only adds fields
        text = f"this capture is of format {version[0]}, natsproxy {value.get('natsproxy')} wrote it; "
        raise UnreadableCapture(
            text + f"this version reads format {VERSION[0]}: upgrade natsproxy", path=path
        )
    recorder, boot, number = value.get("recorder"), value.get("boot"), value.get("segment")
    wall, mono = value.get("wall"), value.get("mono")
    if (
        not isinstance(recorder, bytes)
        or type(number) is not int
        or type(wall) is not int
        or type(mono) is not int
    ):
        raise CaptureError("a segment header that lacks a field", path=path)
    seed, rules, settings = value.get("seed"), value.get("rules"), value.get("settings")
    return Segment(
        path,
        recorder,
        boot if isinstance(boot, bytes) else b"",
        number,
        wall,
        mono,
        seed if type(seed) is int else None,
        rules if isinstance(rules, str) else None,
        str(value.get("natsproxy")),
        settings if isinstance(settings, dict) else {},
    )


def _decompress(body: bytes, size: int, path: Path | str, offset: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        text = "it is compressed: reading it needs the zstandard package (pip install 'natsproxy[zstd]')"
        raise CaptureError(text, path=path) from None
    try:
        # The size in the zstd frame is checked first: a small block may unpack to gigabytes.
        frame = zstandard.get_frame_parameters(body)
        if frame.content_size > BODY_MAX or frame.content_size != size:
            raise CaptureError(
                "a compressed block whose size differs from its summary", path=path, offset=offset
            )
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CaptureError(f"a block that does not decompress: {error}", path=path, offset=offset) from None
