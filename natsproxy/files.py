"""Small files that others read: each appears whole, or stays as it was."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that no reader sees a part of it.  Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        with suppress(OSError):  # it was renamed, or never made
            part.unlink()
