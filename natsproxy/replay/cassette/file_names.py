"""Cassette file names made from test names.  (Light: the pytest plugin imports it in every run.)"""

from __future__ import annotations

import hashlib
import re
from typing import Final

_LONGEST: Final = 100  # characters of a file name, at most, without its suffix


def safe_name(name: str) -> str:
    """Return a name for a file, distinct for each name: letters, digits, `_`, `.` and `-` stay."""
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
    if safe != name or len(safe) > _LONGEST:
        # Two names may differ only in such characters.
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        safe = f"{safe[:_LONGEST]}-{digest}"
    return safe
