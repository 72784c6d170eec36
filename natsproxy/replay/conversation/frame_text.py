"""Frames for people: the lines of the text form, and the lines in which two frames differ."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import Final

from natsproxy.capture.text.frames import dump_frame, leaves_empty
from natsproxy.protocol.template import template
from natsproxy.replay.conversation.generated_values import common_form, split
from natsproxy.wire.frames import Frame

_MOST: Final = 1000  # lines of a frame that are compared
_SHOWN: Final = 24
_WIDTH: Final = 120
_BEFORE: Final = 40  # characters before the first difference of two long lines


def frame_text(frame: Frame) -> list[str]:
    """Return a frame as lines, an inbox in it as its template."""
    line, below = dump_frame(frame, padded=leaves_empty(frame))
    if frame.reply:
        reply, generic = (one.decode(errors="replace") for one in (frame.reply, template(frame.reply)))
        line = line.replace(reply, generic)
    return [line, *(f"  {one}" for one in islice(below, _MOST))]


def changed_lines(ours: list[str], theirs: list[str], *, alike: bool = False) -> list[str]:
    """Return the lines in which two frames differ, with one line around them, as diff shows them.

    Those of a frame alone, where the other list is empty, all have its sign.  alike: lines that differ in
    identifiers and times alone are the same.
    """
    at = next((_same(one, other) for one, other in zip(ours, theirs, strict=False) if one != other), 0)
    if alike:
        theirs = _with_alike(ours, theirs)
    lines = list(difflib.unified_diff(ours, theirs, n=1 if ours and theirs else 0, lineterm=""))[3:]
    shown = ["  …" if line.startswith("@@") else _cut(line, at + 1) for line in lines]
    more = [f"  and {len(shown) - _SHOWN} lines more"] if len(shown) > _SHOWN else []
    return shown[:_SHOWN] + more


def _with_alike(ours: list[str], theirs: list[str]) -> list[str]:
    """Return the lines of one frame with those of another that differ in identifiers and times alone."""
    found = list(theirs)
    frames = [[b"\0".join(split(line.encode())[::2]) for line in lines] for lines in (ours, theirs)]
    for a, b, size in difflib.SequenceMatcher(
        None, frames[0], frames[1], autojunk=False
    ).get_matching_blocks():
        for mine, at in zip(ours[a : a + size], range(b, b + size), strict=True):
            if _are_alike(mine, theirs[at]):
                found[at] = mine
    return found


def _are_alike(ours: str, theirs: str) -> bool:
    return all(
        a == b or common_form(a, b) is not None
        for a, b in zip(split(ours.encode()), split(theirs.encode()), strict=True)
    )


def _same(one: str, other: str) -> int:
    """Return the number of characters in which two lines agree from the left."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def _cut(line: str, at: int) -> str:
    """Return a line around the place where it differs from another one."""
    if len(line) <= _WIDTH:
        return line
    first = max(1, min(at - _BEFORE, len(line) - _WIDTH))
    return line[0] + ("…" if first > 1 else "") + line[first : first + _WIDTH] + "…"
