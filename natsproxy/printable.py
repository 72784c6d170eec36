"""Text that is safe on a terminal: control characters from peers and captures are written out."""

from __future__ import annotations

import os


def printable(text: str | bytes, keep: str = "") -> str:
    """Return a text whose unprintable characters are written out (`\\x1b`), except for those in `keep`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def wants_plain() -> bool:
    """Return True if the user wants no colours: NO_COLOR is set, or the terminal is a dumb one."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
