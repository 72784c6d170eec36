"""Text that is safe to show: what peers and captures say reaches terminals without control characters."""

from __future__ import annotations

import os


def printable(text: str | bytes, keep: str = "") -> str:
    """Return text with every character that does not print written out (`\\x1b`), but for those in `keep`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _written(char) for char in text)


def wants_plain() -> bool:
    """Tell whether the user wants no colours: NO_COLOR is set, or the terminal is a dumb one."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _written(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
