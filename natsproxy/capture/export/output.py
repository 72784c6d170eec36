"""The output file of an export, which appears under its name only when it is whole.

The export is written to a partial file in the same folder, synced and renamed.  So a crash or a full disk
leaves no partial file, and a failed export leaves an existing file untouched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from natsproxy.capture.read.reader import CaptureReader
from natsproxy.errors import CaptureError


@contextmanager
def output(path: Path, reader: CaptureReader, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing, which becomes `path` when the `with` block ends without an error.

    Raises CaptureError for a name that is taken (unless `force`) or that is part of the capture itself, and
    where writing fails.
    """
    if path.exists() and not force:
        raise CaptureError("it exists already: give another name, or --force to overwrite it", path=path)
    if path.exists() and any(_same(path, part) for part in reader.paths):
        raise CaptureError("this is the capture itself: give another name", path=path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _created(partial) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename: else a crash may leave the name with an empty file
        partial.replace(path)
    except OSError as error:
        raise CaptureError(f"cannot write it: {error.strerror or error}", path=path) from None
    finally:
        with suppress(OSError):  # it was renamed, or never made
            partial.unlink()


def _created(path: Path) -> IO[bytes]:
    """Create a file that only its owner reads, as captures are."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _same(path: Path, segment: Path) -> bool:
    try:
        return path.samefile(segment)
    except FileNotFoundError:  # its recorder has deleted the segment meanwhile
        return False
