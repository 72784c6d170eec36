"""Blocks to files: one segment after another, each closed with its index.

This is synchronous file work, meant for a thread: its calls (checksum, compression, writev, fsync) release
the interpreter lock.  A block is written whole or not at all: after a short write or a full disk the file is
cut back to its last whole block, and CaptureError is raised.  The caller may try the same block again: it
goes to the same file once a full disk has room, and to a new segment where the file was removed or cannot be
used.

From its first segment until `close` a capture always has a segment without an index: a new segment is created
before the previous one gets its index.  So after a crash at any moment the files show that the capture was
not closed.

Written blocks are soon dropped from the kernel's page cache: a capture that is not being read must not take
memory from others, and fresh pages for all of it would cost more processor time than everything else here
(several times as much on virtual machines that return unused pages to their host).  It also keeps the final
fsync short.

A segment's file goes through these states: open; open and torn (a partial block follows the last whole one,
and is truncated before the next write); open and broken (nothing more can be written to it: the next
block goes to a new segment); closed with its index, or left without one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

import msgpack

from natsproxy import __version__
from natsproxy.capture import names
from natsproxy.capture.format.blocks import MAGIC, VERSION, ZSTD, BlockKind, Parts, header
from natsproxy.capture.format.expansion import allowed, holds_more
from natsproxy.capture.write.builder import SealedBlock
from natsproxy.capture.write.index import Index
from natsproxy.errors import CaptureError

_IOV_MAX = 1000  # below the kernel's 1,024
_BEHIND = 8 << 20  # bytes after which the kernel is told to write, and to drop written pages
_FORGOTTEN = 64 << 20  # bytes before the end beyond which all pages were dropped already
_NAMES = 10_000  # names that are tried where others are taken

Buffer = bytes | bytearray | memoryview
"""A body in one piece."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The header of a segment: ids of 16 bytes; wall and mono are the clocks at its creation, in ns."""

    recorder: bytes
    boot: bytes
    wall: int
    mono: int
    seed: int | None = None
    rules: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


class _SegmentFile:
    """The file of one segment, open for writing.

    size: the bytes of its whole blocks.  broken: nothing more can be written to it.
    """

    def __init__(self, path: Path, fd: int, info: SegmentInfo, number: int) -> None:
        self.path = path
        self.info = info
        self.number = number
        self.size = 0
        self.broken = False
        self.index = Index(info.wall)
        self._fd = fd
        self._torn = False
        self._behind = 0  # the size at the last call of `_write_behind`

    @property
    def removed(self) -> bool:
        """True if the file was unlinked."""
        return not os.fstat(self._fd).st_nlink

    @property
    def usable(self) -> bool:
        """True if what is written to it is not lost."""
        return not (self.broken or self.removed)

    def append(self, parts: Parts) -> None:
        """Write bytes as a whole.  Raises CaptureError; then none of them count."""
        written = 0
        try:
            if self._torn:
                self._cut_back()
            for at in range(0, len(parts), _IOV_MAX):
                written += self._writev([memoryview(part) for part in parts[at : at + _IOV_MAX] if len(part)])
        except OSError as error:
            self.broken = error.errno not in (ENOSPC, EDQUOT)  # a full disk may have room again
            self._tear()
            raise CaptureError(f"cannot write the capture: {error.strerror}", path=self.path) from None
        self.size += written

    def add(self, flags: int, summary: Sequence[Any], body: Buffer) -> None:
        """Write a records block.  Raises as `append`."""
        packed, offset = msgpack.packb(summary), self.size
        self.append([header(BlockKind.RECORDS, flags, packed, [body], len(body)), packed, body])
        self.index.add(offset, packed, summary)
        if self.size - self._behind >= _BEHIND:
            self._write_behind()

    def _write_behind(self) -> None:
        """Start write-back of new pages, and drop those that are on the disk."""
        first = max(0, self.size - _FORGOTTEN)
        self._behind = self.size
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # not every file system can
                os.posix_fadvise(self._fd, first, self.size - first, os.POSIX_FADV_DONTNEED)

    def _tear(self) -> None:
        self._torn = True
        with suppress(OSError):  # retried before the next write
            self._cut_back()

    def _cut_back(self) -> None:
        os.ftruncate(self._fd, self.size)
        os.lseek(self._fd, self.size, os.SEEK_SET)
        self._torn = False

    def _writev(self, parts: list[memoryview]) -> int:
        total = 0
        while parts:
            count = os.writev(self._fd, parts)
            total += count
            while parts and count >= len(parts[0]):
                count -= len(parts.pop(0))
            if count:
                parts[0] = parts[0][count:]
        return total

    def finish(self) -> None:
        """Write index and footer, sync and close.  Raises CaptureError; then the file stays open."""
        whole = self.size
        self.append(self.index.ending(whole))
        try:
            os.fsync(self._fd)
        except OSError as error:
            # The kernel reports a failed write-back only once: another fsync would falsely succeed.
            self.size, self.broken = whole, True
            self._tear()
            raise CaptureError(f"cannot write the capture: {error.strerror}", path=self.path) from None
        self._release()

    def leave(self) -> None:
        """Close the file without an index: it ends with its last whole block, if the disk allows that."""
        if self._torn:
            self._tear()
        self._release()

    def discard(self) -> None:
        """Close the file and remove it, if it still has its name."""
        with suppress(OSError):  # it may be gone, or its name taken by another file
            if os.path.samestat(self.path.stat(), os.fstat(self._fd)):
                self.path.unlink()
        self._release()

    def _release(self) -> None:
        with suppress(OSError):  # already synced, or its failure was raised
            os.close(self._fd)


class CaptureWriter:
    """Writes one capture: a file `x.ncap`, or a folder of segments.

    info: of the segment that is written, or of the first one.  segment: its number, -1 before the first one.
    """

    def __init__(self, path: Path, info: SegmentInfo, *, compression: str = "none") -> None:
        if path.suffix == ".txt":  # otherwise it would become a folder of that name
            raise CaptureError(
                "record to x.ncap or a folder; `capture export --text` makes a text of it", path=path
            )
        self.path = path
        self.single = path.suffix == ".ncap"
        self.info = info
        self.segment = -1
        self.file: Path | None = None
        self._open: _SegmentFile | None = None
        self._ended: _SegmentFile | None = None  # the segment before, until it has its index
        self._named = -1  # the time in the last name (ms)
        self._compress = _compressor(compression)

    @property
    def size(self) -> int:
        """The size of the current segment, in whole blocks."""
        return self._open.size if self._open is not None else 0

    def full(self, size: int) -> bool:
        """Tell whether a segment of at most this size is to end; 0: of any size."""
        return size > 0 and self._open is not None and (self._open.size >= size or self._open.index.full)

    def open_segment(self, info: SegmentInfo | None = None) -> Path:
        """Begin the next segment, and close the one before it.

        Raises CaptureError.  Then a call with the same `info` resumes where this one failed; without one,
        blocks go to the last segment that could be opened.
        """
        self._end()
        present = self._open
        if present is None or info is None or info is not present.info:
            present = self._begin(info or self.info)
            self._end()
        return present.path

    def _begin(self, info: SegmentInfo) -> _SegmentFile:
        """Make a new segment the current one."""
        before = self._open
        number = self.segment + 1
        if before is not None and not before.usable and not before.index.blocks:
            number = before.number  # `_end` removes it
        if not self.single:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = f"cannot create the folder of the capture: {error.strerror}"
                raise CaptureError(reason, path=self.path) from None
        new = self._create(info, number)
        try:
            new.append(beginning(info, number))
        except CaptureError:
            new.discard()
            raise
        self._ended, self._open = before, new
        self.info, self.segment, self.file = info, number, new.path
        return new

    def _create(self, info: SegmentInfo, number: int) -> _SegmentFile:
        """Create a segment's file under the next free name; an existing file is never touched."""
        # O_EXCL: two recorders that start at once on one path get two names, not one file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for path in self._names(info, number):
            try:
                fd = os.open(path, flags, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise CaptureError(f"cannot create the capture: {error.strerror}", path=path) from None
            # The lock marks the segment as being written (`net/retention.py`), and ends with this process.
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _SegmentFile(path, fd, info, number)
        raise CaptureError("cannot create the capture: all names like it are taken", path=self.path)

    def _names(self, info: SegmentInfo, number: int) -> Iterator[Path]:
        """Yield names for a segment, each of which sorts after all names of this run."""
        if self.single and self.segment < 0:
            yield self.path
        for _ in range(_NAMES):
            self._named = names.later_than(info.wall, self._named)
            if self.single:
                yield names.beside(self.path, self._named)
            else:
                yield names.in_folder(self.path, self._named, info.recorder, number)

    def _end(self) -> None:
        """Finish the segment before the current one."""
        ended = self._ended
        if ended is None:
            return
        if ended.usable:
            ended.finish()
        elif ended.index.blocks:
            ended.leave()
        else:
            ended.discard()
        self._ended = None

    def write(self, block: SealedBlock) -> None:
        """Write a records block.

        Raises CaptureError; then the file ends with its last whole block, and the block may be tried again.
        """
        if self._open is None or not self._open.usable:
            self.open_segment(replace(self.info, wall=block.summary[1], mono=block.summary[0]))
        assert self._open is not None
        flags = 0
        # In one piece: each call that releases the interpreter lock has to wait for it afterwards.
        body: Buffer = block.buffers[0] if len(block.buffers) == 1 else b"".join(block.buffers)
        if self._compress is not None:
            compressed = self._compress(body)
            # A reader refuses a block that expands too much for its size.
            if not holds_more(body, block.summary[5], allowed(len(compressed))):
                body, flags = compressed, ZSTD
        self._open.add(flags, block.summary, body)

    def close(self) -> None:
        """Write index and footer, sync and close; idempotent.  Without them the file stays readable.

        A file that was removed is only closed.  Raises CaptureError; then the caller tries again, or calls
        `abandon`.
        """
        self._end()
        if self._open is None:
            return
        if self._open.removed:
            self._open.leave()
        elif self._open.broken:
            raise CaptureError("cannot close the capture: a write to it has failed", path=self.file)
        else:
            self._open.finish()
        self._open = None

    def abandon(self) -> None:
        """Close all files without an index, which shows that the capture was not closed."""
        for file in (self._ended, self._open):
            if file is not None:
                file.leave()
        self._ended = self._open = None


def beginning(info: SegmentInfo, number: int) -> list[bytes]:
    """Return the first bytes of a segment: the magic and its header."""
    body = msgpack.packb(
        {
            "version": list(VERSION),
            "recorder": info.recorder,
            "boot": info.boot,
            "segment": number,
            "wall": info.wall,
            "mono": info.mono,
            "natsproxy": __version__,
            "seed": info.seed,
            "rules": info.rules,
            "settings": info.settings,
        }
    )
    return [MAGIC, header(BlockKind.SEGMENT, 0, b"", [body], len(body)), body]


def _compressor(name: str) -> Any:
    if name == "none":
        return None
    try:
        import zstandard
    except ImportError:
        raise CaptureError("compression needs the zstandard package: pip install 'natsproxy[zstd]'") from None
    return zstandard.ZstdCompressor(level=1).compress
