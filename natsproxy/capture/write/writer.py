"""Blocks to files: one segment after another, each closed with its index.

This is synchronous file work, meant for a thread: its calls (checksum, compression, writev, fsync) release
the interpreter lock.  A block is written whole or not at all: after a short write or a full disk the file is
cut back to its last whole block, and CaptureError is raised.  The caller may try the same block again: it
goes to the same file once a full disk has room, and to a new segment where the file was removed or cannot be
used.

Written blocks leave the kernel's page cache soon: a capture that nobody reads now must not take the memory of
others, and fresh pages for all of it would cost more processor time than everything else here (several times
as much on virtual machines that give unused pages back to their host).  It also keeps the final fsync short.

A file goes through these states: no file (`_fd` is -1); open; open and torn (a part of a block stands behind
the last whole one, and is cut off before the next write); open and broken (nothing more can be written to
it: the next write begins a new segment); closed with its index, or abandoned without one.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

import msgpack

from natsproxy import __version__
from natsproxy.capture.format.blocks import MAGIC, VERSION, ZSTD, Kind, Parts, header
from natsproxy.capture.write.builder import SealedBlock
from natsproxy.capture.write.index import Index
from natsproxy.errors import CaptureError

_IOV_MAX = 1000  # below the kernel's 1,024
_BEHIND = 8 << 20  # bytes after which the kernel is told to write, and to forget what it has written
_FORGOTTEN = 64 << 20  # bytes behind which nothing is to be forgotten any more
_NAMES = 10_000  # names that are tried for a capture beside others


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


class CaptureWriter:
    """Writes one capture: a file `x.ncap`, or a folder of segments."""

    def __init__(self, path: Path, info: SegmentInfo, *, compression: str = "none") -> None:
        if path.suffix == ".txt":  # else it would become a folder of that name
            raise CaptureError(
                "record to x.ncap or a folder; `capture export --text` makes a text of it", path=path
            )
        self.path = path
        self.single = path.suffix == ".ncap"
        self.info = info
        self.segment = -1
        self.size = 0
        self._behind = 0  # the size at the last call of `_write_behind`
        self.file: Path | None = None
        self._fd = -1
        self._torn = False
        self._broken = False
        self._index = Index(info.wall)
        self._compress = _compressor(compression)

    def full(self, size: int) -> bool:
        """Tell whether a segment of at most this size is to end; 0: of any size."""
        return size > 0 and (self.size >= size or self._index.full)

    def open_segment(self, info: SegmentInfo | None = None) -> Path:
        """Close the present segment, and begin the next one."""
        self.close()
        self.info = info or self.info
        if not self.single:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = f"cannot create the folder of the capture: {error.strerror}"
                raise CaptureError(reason, path=self.path) from None
        self.segment += 1
        try:
            self.file, self._fd = self._create()
        except CaptureError:
            self.segment -= 1
            raise
        self.size = self._behind = 0
        self._torn = self._broken = False
        self._index = Index(self.info.wall)
        try:
            self._write(beginning(self.info, self.segment))
        except CaptureError:
            self.abandon()
            raise
        return self.file

    def _create(self) -> tuple[Path, int]:
        """Create the segment's file under the next free name; an existing file is never touched."""
        # O_EXCL: two recorders that start at once on one path get two names, not one file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for number in range(self.segment, self.segment + _NAMES):
            file = self.path / f"{self.info.recorder.hex()}-{self.segment}.ncap"
            if self.single:
                file = self.path.with_name(f"{self.path.stem}-{number}.ncap") if number else self.path
            try:
                fd = os.open(file, flags, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise CaptureError(f"cannot create the capture: {error.strerror}", path=file) from None
            # It says that the segment is being written (`net/retention.py`), and ends with this process.
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file, fd
        raise CaptureError("cannot create the capture: all names like it are taken", path=self.path)

    def write(self, block: SealedBlock) -> None:
        """Write a records block.

        Raises CaptureError; then the file ends with its last whole block, and the block may be tried again.
        """
        if self._fd < 0 or self._unusable():
            self.abandon()
            self.open_segment(replace(self.info, wall=block.summary[1], mono=block.summary[0]))
        flags = 0
        # In one piece: each call that releases the interpreter lock costs a wait for it afterwards.
        body = block.buffers[0] if len(block.buffers) == 1 else b"".join(block.buffers)
        if self._compress is not None:
            body = self._compress(body)
            flags = ZSTD
        offset = self.size
        summary = msgpack.packb(block.summary)
        self._block(Kind.RECORDS, flags, summary, [body])
        self._index.add(offset, summary, block.summary)
        if self.size - self._behind >= _BEHIND:
            self._write_behind()

    def _write_behind(self) -> None:
        """Let the kernel begin to write what is new, and forget what is on the disk."""
        first = max(0, self.size - _FORGOTTEN)
        self._behind = self.size
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # not every file system can
                os.posix_fadvise(self._fd, first, self.size - first, os.POSIX_FADV_DONTNEED)

    def _unusable(self) -> bool:
        """Tell whether a write would be lost: the file was removed, or a write to it failed for good."""
        return self._broken or not os.fstat(self._fd).st_nlink

    def _block(self, kind: Kind, flags: int, summary: bytes, body: Parts) -> None:
        length = sum(map(len, body))
        self._write([header(kind, flags, summary, body, length), summary, *body])

    def _write(self, parts: Parts) -> None:
        written = 0
        try:
            if self._torn:
                self._cut_back()
            for at in range(0, len(parts), _IOV_MAX):
                written += self._writev([memoryview(part) for part in parts[at : at + _IOV_MAX] if len(part)])
        except OSError as error:
            self._torn = True
            self._broken = error.errno not in (ENOSPC, EDQUOT)  # a full disk may have room again
            with suppress(OSError):  # it is tried again before the next write
                self._cut_back()
            raise CaptureError(f"cannot write the capture: {error.strerror}", path=self.file) from None
        self.size += written

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

    def close(self) -> None:
        """Write index and footer, sync and close; idempotent.  Without them the file stays readable.

        Raises CaptureError; then the caller tries again, or calls `abandon`.
        """
        if self._fd < 0:
            return
        if self._unusable():
            self.abandon()
            return
        size = self.size
        self._write(self._index.ending(size))
        try:
            os.fsync(self._fd)
        except OSError as error:
            # The kernel reports a failed write-back once and then forgets it: another fsync would lie.
            self.size, self._torn, self._broken = size, True, True
            raise CaptureError(f"cannot write the capture: {error.strerror}", path=self.file) from None
        self._release()

    def abandon(self) -> None:
        """Close the file without an index; a file without blocks is removed, and its number used again."""
        if self._fd < 0:
            return
        if not self._index.blocks and self.file is not None:
            self.segment -= 1
            with suppress(OSError):  # it may be gone already, and another file may have its name
                if os.path.samestat(self.file.stat(), os.fstat(self._fd)):
                    self.file.unlink()
        self._release()

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        with suppress(OSError):  # it is synced, or its failure was raised already
            os.close(fd)


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
    return [MAGIC, header(Kind.SEGMENT, 0, b"", [body], len(body)), body]


def _compressor(name: str) -> Any:
    if name == "none":
        return None
    try:
        import zstandard
    except ImportError:
        raise CaptureError("compression needs the zstandard package: pip install 'natsproxy[zstd]'") from None
    return zstandard.ZstdCompressor(level=1).compress
