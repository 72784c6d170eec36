"""Captures on object stores and other remote file systems, through `pyarrow.fs`.

A place is an address (`s3://bucket/folder/*.ncap`, `gs://`, `abfs://`, `hdfs://`, `file://`); Hadoop's
`s3a://` and `s3n://` mean `s3://` here.  Its wildcards are those of a local glob: `*`, `?` and `[...]`,
folder by folder.  Percent-encoded, they are literal characters (`%3F` is a question mark).  A `?` with
`name=value` after it begins pyarrow's own settings (`?endpoint_override=...&region=...`).

pyarrow asks for an object's size when it opens it: that is one request.  `open_for_planning` needs one more
for a small object, two for a large one.
"""

from __future__ import annotations

import fnmatch
import io
import os
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, unquote

from natsproxy.capture.names import segment_order
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError, MissingCapture

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

AT_ONCE: Final = 32
"""The number of concurrent requests while reads of captures are planned."""
_WHOLE: Final = 1 << 20
"""The size up to which a whole object is fetched in one request, bytes."""
_END: Final = 64 << 10
"""The bytes that a request fetches of a larger one: header, or footer and index."""
_READ_BUFFER: Final = 8 << 20
"""The bytes that a request fetches while blocks are read one after another."""
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HADOOP = re.compile(r"^s3[an]://", re.IGNORECASE)
_SETTINGS = re.compile(r"\?[A-Za-z_]\w*=[^?]*$")
_MAGIC = re.compile(r"[*?\[]")


def is_url(place: str) -> bool:
    """Return True for a place with a scheme, which is read through `pyarrow.fs`."""
    return bool(_URL.match(place))


def listing(place: str) -> list[str]:
    """Return the segment files of an address in order; none where no file is there yet."""
    from pyarrow.fs import FileSelector, FileType

    address, settings = _split_settings(place)
    folder, pattern = _split_pattern(address)
    system, root = _resolve(folder, settings, place)
    try:
        if not pattern:
            if system.get_file_info(root).type == FileType.File:
                return [place]
            pattern = "*.ncap"
        deep = "/" in pattern
        infos = system.get_file_info(FileSelector(root, allow_not_found=True, recursive=deep))
    except OSError as error:
        raise _error(error, place) from None
    names = [info.path[len(root) :].strip("/") for info in infos if info.type == FileType.File]
    ordered = segment_order(Path(name) for name in names if _fits(name, unquote(pattern)))
    return [f"{folder.rstrip('/')}/{quote(path.as_posix())}{settings}" for path in ordered]


def open_for_reading(place: str) -> CaptureFile:
    """Open one segment whose blocks are read one after another."""
    return CaptureFile(place, cast("IO[bytes]", io.BufferedReader(cast(Any, _open(place)), _READ_BUFFER)))


def open_for_planning(place: str) -> CaptureFile:
    """Open one segment to read its header and index, in few requests."""
    return CaptureFile(place, cast("IO[bytes]", _Ends(_open(place))))


def _open(place: str) -> NativeFile:
    system, path = _resolve(*_split_settings(place), place)
    try:
        return system.open_input_file(path)
    except FileNotFoundError:
        raise MissingCapture("it was deleted before it was read", path=place) from None
    except OSError as error:
        raise _error(error, place) from None


class _Ends:
    """An object of which few ranges are read: the last range fetched is kept."""

    def __init__(self, source: NativeFile) -> None:
        self._source = source
        self._size: int = source.size()
        self._at = self._start = 0
        self._kept = b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._size if whence == os.SEEK_END else 0)
        return self._at

    def read(self, size: int) -> bytes:
        end = min(self._at + size, self._size)
        if not self._start <= self._at <= end <= self._start + len(self._kept):
            self._fetch(end)
        data = self._kept[self._at - self._start : end - self._start]
        self._at += len(data)
        return data

    def _fetch(self, end: int) -> None:
        """Fetch the range from here to `end`, and what may be read next."""
        if self._size <= _WHOLE:
            self._start, end = 0, self._size
        elif self._size - self._at <= _END:
            self._start, end = self._size - _END, self._size
        else:
            self._start, end = self._at, min(max(end, self._at + _END), self._size)
        self._kept = self._source.read_at(end - self._start, self._start)

    def close(self) -> None:
        self._source.close()


def _split_settings(place: str) -> tuple[str, str]:
    """Return a place as its address and pyarrow's settings, from their `?` on."""
    place = _HADOOP.sub("s3://", place)
    found = _SETTINGS.search(place)
    return (place, "") if found is None else (place[: found.start()], found[0])


def _split_pattern(address: str) -> tuple[str, str]:
    """Return an address without its wildcards, and the part from the first wildcard's folder level on."""
    first = _MAGIC.search(address)
    if first is None:
        return address, ""
    cut = address.rfind("/", 0, first.start())
    return address[:cut], address[cut + 1 :]


def _resolve(address: str, settings: str, place: str) -> tuple[FileSystem, str]:
    """Return the file system of an address, and the path in it."""
    from pyarrow import ArrowException

    scheme, _, path = address.partition("://")
    host, _, path = path.partition("/")
    try:
        system, root = file_system(f"{scheme}://{host or '/'}{settings}")
    except (ArrowException, OSError, ValueError) as error:
        raise CaptureError(f"this address cannot be used: {_reason(error)}", path=place) from None
    return system, f"{root.rstrip('/')}/{unquote(path)}".rstrip("/") or "/"


@lru_cache(maxsize=16)
def file_system(address: str) -> tuple[FileSystem, str]:
    """Return the file system behind an address, and the path of its root; each is made once."""
    import pyarrow
    from pyarrow.fs import FileSystem

    # An S3 client has as many connections as pyarrow has I/O threads.
    pyarrow.set_io_thread_count(max(AT_ONCE, pyarrow.io_thread_count()))
    made: tuple[FileSystem, str] = FileSystem.from_uri(address)
    return made


def _fits(name: str, pattern: str) -> bool:
    """Return True if a path fits a glob, folder by folder."""
    parts, patterns = PurePosixPath(name).parts, PurePosixPath(pattern).parts
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _error(error: OSError, place: str) -> CaptureError:
    return CaptureError(f"cannot read it: {_reason(error)}", path=place)


def _reason(error: Exception) -> str:
    """Return the text of a library's error, in one line."""
    strerror = getattr(error, "strerror", None)
    return str(strerror or error).strip().split("\n")[0].split(". Detail:")[0]
