"""Paths of captures: files, folders of segments, globs, and the same on object stores.

A place with a scheme is read through `pyarrow.fs` (`object_stores.py`), with pyarrow's own credentials (for
S3 the AWS chain: environment, profile, instance role), not with `spark.hadoop.*`.  Anything else is a local
path: on a cluster every node must see it.

Objects do not grow, so closed segments are uploaded.  Local files may still be written to.
"""

from __future__ import annotations

import re
from pathlib import Path

from natsproxy.capture.names import segment_order
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.errors import CaptureError
from natsproxy.spark.source import object_stores
from natsproxy.spark.source.object_stores import is_url


def segments(place: str) -> list[str]:
    """Return the segment files of a place in order.  Raises CaptureError, naming it, where there are none."""
    found = listing(place)
    if found:
        return found
    if not is_url(place):
        open_capture(place)  # raises the more exact error
    raise CaptureError("there is no capture here (no such file, folder or *.ncap in it)", path=place)


def listing(place: str) -> list[str]:
    """Return the segment files of a place in order; none where no file is there yet."""
    if is_url(place):
        return object_stores.listing(place)
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


def open_segment(place: str) -> CaptureFile:
    """Open one segment file, local or remote, to read its blocks."""
    return object_stores.open_for_reading(place) if is_url(place) else CaptureFile(Path(place))


def open_for_planning(place: str) -> CaptureFile:
    """Open one segment file, local or remote, to list its blocks."""
    return object_stores.open_for_planning(place) if is_url(place) else CaptureFile(Path(place))
