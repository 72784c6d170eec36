"""Paths of captures: files, folders of segments, globs, and the same on object stores.

A place with a scheme (`s3://bucket/folder/*.ncap`, `gs://`, `abfs://`, `hdfs://`, `file://`) is read
through `pyarrow.fs`, which asks for byte ranges; Hadoop's `s3a://` and `s3n://` mean `s3://` here.
Credentials are those of pyarrow (for S3 the AWS chain: environment, profile, instance role), not
`spark.hadoop.*`.  The part after `?` has pyarrow's own settings (`?endpoint_override=...&region=...`).
Anything else is a path of this machine: on a cluster every node must see it.

Objects do not grow, so closed segments are uploaded.  Local files may still be written to.
"""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

from natsproxy.capture.read.reader import open_capture, segment_order
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError, TruncatedCapture

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PLAN_BUFFER = 64 << 10
"""Bytes that one request for a header brings from an object store, while planning."""
READ_BUFFER = 8 << 20
"""The same while blocks are read one after another."""
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HADOOP = re.compile(r"^s3[an]://", re.IGNORECASE)
_MAGIC = re.compile(r"[*\[]")


def is_url(place: str) -> bool:
    """Return True for a place with a scheme, which is read through `pyarrow.fs`."""
    return bool(_URL.match(place))


def segments(place: str) -> list[str]:
    """Return the segment files of a place in order.  Raises CaptureError, naming it, where there are none."""
    found = listing(place)
    if found:
        return found
    if not is_url(place):
        open_capture(place)  # it raises the more exact error
    raise CaptureError("there is no capture here (no such file, folder or *.ncap in it)", path=place)


def listing(place: str) -> list[str]:
    """Return the segment files of a place in order; none where no file is there yet."""
    if is_url(place):
        return _remote_listing(place)
    where = Path(place)
    if where.is_dir():
        return [str(path) for path in segment_order(where.glob("*.ncap"))]
    if where.exists():
        return [place]
    root, pattern = _glob_root(where)
    return [str(path) for path in segment_order(root.glob(pattern))] if pattern else []


def _glob_root(where: Path) -> tuple[Path, str]:
    """Return the part of a path before its first wildcard, and the pattern after it ("" without one)."""
    for place, part in enumerate(where.parts):
        if re.search(r"[*?\[]", part):
            return Path(*where.parts[:place]), str(Path(*where.parts[place:]))
    return where, ""


def open_segment(place: str, buffer: int = READ_BUFFER) -> CaptureFile:
    """Open one segment file, wherever it is; buffer: bytes to ask an object store for at a time."""
    if not is_url(place):
        return CaptureFile(Path(place))
    system, path, _ = _resolve(place)
    try:
        source = system.open_input_file(path)
        return CaptureFile(place, cast("IO[bytes]", io.BufferedReader(cast(Any, source), buffer)))
    except OSError as error:
        raise CaptureError(f"cannot read it: {_reason(error)}", path=place) from None


class SegmentFile(NamedTuple):
    """A segment file: the segment that it holds (recorder, boot, number), and its size in bytes."""

    name: str
    segment: tuple[str, str, int]
    size: int


def begun(places: Iterable[str]) -> list[SegmentFile]:
    """Open every segment of all places once; return those that have begun, each file once.

    Raises CaptureError where there is no file, for a file that is no capture or of a newer version, and
    without permission.  A segment whose header is not written yet is passed over, unless its place has no
    other.
    """
    found: dict[str, SegmentFile] = {}
    for place in places:
        unwritten: TruncatedCapture | None = None
        any_begun = False
        for name in segments(place):
            try:
                with open_segment(name, PLAN_BUFFER) as file:
                    header = file.segment
                    identity = header.recorder.hex(), header.boot.hex(), header.number
                    found[name] = SegmentFile(name, identity, file.size())
                    any_begun = True
            except TruncatedCapture as error:
                unwritten = error
        if unwritten is not None and not any_begun:
            raise unwritten
    return list(found.values())


def _resolve(place: str) -> tuple[FileSystem, str, str]:
    """Return the file system of a URL, the path in it, and the rest of the URL (from `?` on)."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    address, mark, query = _HADOOP.sub("s3://", place).partition("?")
    head, pattern = _split(address)
    try:
        system, root = FileSystem.from_uri(f"{head}{mark}{query}")
    except (ArrowException, OSError, ValueError) as error:
        raise CaptureError(f"this address cannot be used: {_reason(error)}", path=place) from None
    return system, f"{root}/{pattern}" if pattern else root, mark + query


def _split(address: str) -> tuple[str, str]:
    """Return an address without its wildcards, and the part from the first wildcard's folder level on."""
    first = _MAGIC.search(address)
    if first is None:
        return address, ""
    cut = address.rfind("/", 0, first.start())
    return address[:cut], address[cut + 1 :]


def _remote_listing(place: str) -> list[str]:
    from pyarrow.fs import FileSelector, FileType

    system, path, rest = _resolve(place)
    address = _HADOOP.sub("s3://", place).partition("?")[0]
    root, pattern = _split(path)
    try:
        if not pattern:
            info = system.get_file_info(path)
            if info.type == FileType.File:
                return [place]
            root, pattern = path, "*.ncap"
        deep = "/" in pattern
        infos = system.get_file_info(FileSelector(root, allow_not_found=True, recursive=deep))
    except OSError as error:
        raise CaptureError(f"cannot read it: {_reason(error)}", path=place) from None
    names = [info.path[len(root) :].strip("/") for info in infos if info.type == FileType.File]
    ordered = segment_order(Path(name) for name in names if _fits(name, pattern))
    folder = _split(address)[0].rstrip("/")
    return [f"{folder}/{quote(path.as_posix())}{rest}" for path in ordered]


def _fits(name: str, pattern: str) -> bool:
    """Return True if a path fits a glob, folder by folder."""
    parts, patterns = PurePosixPath(name).parts, PurePosixPath(pattern).parts
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _reason(error: Exception) -> str:
    """Return the text of a library's error, in one line."""
    strerror = getattr(error, "strerror", None)
    return str(strerror or error).strip().split("\n")[0].split(". Detail:")[0]
