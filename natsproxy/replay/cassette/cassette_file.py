"""The file of a cassette: a capture, or text if its name ends in `.txt` or the existing file is text.

A cassette is replaced atomically by one that was written beside it and synced: after a crash, one of the two
is there, whole.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from natsproxy.capture.export.output import output
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.statements import MAGIC
from natsproxy.capture.text.writer import write_text
from natsproxy.errors import CaptureError


def beside(path: Path) -> Path:
    """Return a path beside `path` for the capture that will replace it.

    Each call returns another path: two processes may record one cassette, and the last one wins.
    """
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.recording.ncap")


def replace(fresh: Path, path: Path) -> None:
    """Replace a cassette atomically by a capture that is complete and synced."""
    try:
        if _is_text(path):
            reader = open_capture(fresh)
            with output(path, reader, force=True) as out:
                write_text(reader, out, brief=True)
            fresh.unlink()
        else:
            fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CaptureError(f"cannot replace the cassette: {error.strerror}", path=path) from None


def _is_text(path: Path) -> bool:
    if path.suffix == ".txt" or not path.exists():
        return path.suffix == ".txt"
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
