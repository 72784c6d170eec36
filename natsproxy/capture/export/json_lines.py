"""Captures as lines of JSON: one object per frame.

Memory does not grow with the capture: one block is read at a time.
"""

from __future__ import annotations

from typing import IO

from natsproxy.capture.listing.choice import Choice, listed_frames
from natsproxy.capture.listing.row import json_line
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import CaptureReader


def jsonl(reader: CaptureReader, out: IO[bytes], query: Query) -> int:
    """Write the frames that match `query` as lines of JSON; return their number."""
    count = 0
    for listed in listed_frames(reader, Choice(query)):
        out.write(json_line(listed).encode() + b"\n")
        count += 1
    return count
