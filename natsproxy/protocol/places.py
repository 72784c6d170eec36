"""Places in a frame, as settings name them: `[SUBJECT ]PLACE`.

| text | place |
| --- | --- |
| `/items/*/ts` | a member of a JSON payload (RFC 6901; `*`: each member or entry), with all below it |
| `header:X-Trace-*` | the value of a header (`*` matches any letters, letter case does not count) |
| `token` | the tokens of the subject |

A subject pattern before it limits the place to those subjects: `orders.> /ts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from natsproxy.protocol.subjects import is_valid_subscribe, matches

_ESCAPE: Final = re.compile(r"~(?![01])")
_PLACE: Final = re.compile("/|header:|token$")
_HEADER: Final = "header:"
_SUBJECT: Final = "token"
Path = tuple[str, ...]
"""The members and indices from the root of a JSON value to one of its parts."""


@dataclass(frozen=True, slots=True)
class FramePlace:
    """A place in frames on a subject pattern: a pointer, a header (glob), or neither for subject tokens."""

    subject: bytes = b">"
    pointer: Path | None = None
    header: str | None = None

    def __str__(self) -> str:
        if self.pointer is not None:
            where = pointer_text(self.pointer)
        else:
            where = _SUBJECT if self.header is None else _HEADER + self.header
        if self.subject == b">" and " " not in where:
            return where
        return f"{self.subject.decode('utf-8', 'surrogateescape')} {where}"

    def on(self, subject: bytes) -> bool:
        """Tell whether the place is one of frames on `subject`."""
        return self.subject == b">" or matches(self.subject, subject)

    def covers(self, path: Path) -> bool:
        """Tell whether a part of a JSON value is at or below the pointer."""
        pointer = self.pointer
        return (
            pointer is not None
            and len(pointer) <= len(path)
            and all(ours in ("*", theirs) for ours, theirs in zip(pointer, path, strict=False))
        )


def parse_place(text: str) -> FramePlace:
    """Read a place.  Raises ValueError with a message that follows the setting's name."""
    before, _, where = text.lstrip(" ").partition(" ")
    if not _PLACE.match(where.lstrip(" ")):  # members of JSON may hold blanks
        before, where = ">", text
    subject, where = before.encode("utf-8", "surrogateescape"), where.lstrip(" ")
    if not is_valid_subscribe(subject):
        raise ValueError(f"must begin with a valid subject pattern, not {before!r}")
    if where == _SUBJECT:
        return FramePlace(subject)
    if where.startswith(_HEADER) and where != _HEADER:
        return FramePlace(subject, header=where.removeprefix(_HEADER))
    if where.startswith("/") and _ESCAPE.search(where) is None:
        members = where[1:].split("/")
        return FramePlace(subject, tuple(one.replace("~1", "/").replace("~0", "~") for one in members))
    raise ValueError(
        "must be a JSON pointer (/id), header:NAME or token, optionally after a subject pattern, "
        f"not {text!r}"
    )


def parse_pointer(text: str) -> FramePlace:
    """Read a place in JSON payloads.  Raises ValueError as `parse_place` does."""
    place = parse_place(text)
    if place.pointer is None:
        raise ValueError(f"must be a JSON pointer, as in /id or orders.> /items/*/id, not {text!r}")
    return place


def pointer_text(path: Path) -> str:
    """Return the JSON pointer of a path."""
    return "".join("/" + one.replace("~", "~0").replace("/", "~1") for one in path)


def matches_any(name: str, globs: tuple[str, ...]) -> bool:
    """Tell whether a header name is one of `globs`: `*` matches any letters, letter case does not count."""
    return bool(globs) and _compiled(globs).fullmatch(name) is not None


@lru_cache(maxsize=256)
def _compiled(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_translated, globs)), re.IGNORECASE | re.DOTALL)


def _translated(glob: str) -> str:
    first, *others = map(re.escape, glob.split("*"))
    if not others:
        return first
    # Atomic groups: a hostile glob with many stars must not cause exponential backtracking.
    return first + "".join(f"(?>.*?{part})" for part in others[:-1] if part) + f".*{others[-1]}"
