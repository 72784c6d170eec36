"""The statements of a text: a line, and the lines below it, which are indented by two blanks.

`write` and `read_statements` are inverses; the keywords of statements are here, for both writer and parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from natsproxy.capture.format.records import (
    CloseRecord,
    FiringRecord,
    GapRecord,
    Item,
    Note,
    OpenRecord,
    Preamble,
)
from natsproxy.errors import CaptureError, UnreadableCapture
from natsproxy.wire.ops import Direction

MAGIC: Final = b"natsproxy text "
SUFFIX: Final = ".nats.txt"
FIRST_LINE: Final = "natsproxy text 1"
ARROWS: Final = {Direction.C2S: ">", Direction.S2C: "<"}
VERBS: Final[dict[type[Item], str]] = {
    OpenRecord: "opened",
    Preamble: "preamble",
    CloseRecord: "closed",
    FiringRecord: "fired",
    GapRecord: "gap",
    Note: "note",
}
RESERVED: Final = frozenset({"recording", "settings", "rules", "names", "connection", "note", "gap"})
"""Keywords of statements, which cannot be labels of connections."""
_INDENT: Final = "  "
_LONGEST: Final = 96 << 20  # bytes of a statement: more than a block holds
_MOST: Final = 1 << 20  # lines of a statement


class TextStatement(NamedTuple):
    """A statement.  number: that of its line; below: the lines below, without their indentation."""

    number: int
    line: str
    below: list[str]


def write(line: str, below: list[str]) -> str:
    """Return the text of a statement."""
    return "".join([f"{line}\n", *(f"{_INDENT}{one}\n" for one in below)])


def read_statements(file: IO[bytes], path: Path | str) -> Iterator[TextStatement]:
    """Yield the statements of a text, after its first line.

    Raises CaptureError for a malformed text, UnreadableCapture for a version that this reader does not know.
    """
    statement: TextStatement | None = None
    size = 0
    for number, line in _lines(file, path):
        if not line.startswith(_INDENT):
            if line[:1] in (" ", "\t"):
                raise _wrong(number, "lines below a statement are indented by two blanks", path)
            if statement is not None:
                yield statement
            statement, size = TextStatement(number, line, []), 0
            continue
        if statement is None:
            raise _wrong(number, "it is indented, but there is no statement above it", path)
        statement.below.append(line[len(_INDENT) :])
        size += len(line)
        if size > _LONGEST or len(statement.below) > _MOST:
            raise _wrong(number, "more than one statement may have", path)
    if statement is not None:
        yield statement


def _lines(file: IO[bytes], path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield the lines except blank lines and comments, with their numbers."""
    number = 0
    while raw := file.readline(_LONGEST + 1):
        number += 1
        if number == 1 and not raw.startswith(MAGIC):
            raise CaptureError("this is not the text of a capture", path=path)
        if len(raw) > _LONGEST:
            raise _wrong(number, "longer than a line may be", path)
        try:
            # CRLF is accepted: git may have converted line ends.
            line = raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise _wrong(number, "not UTF-8", path) from None
        if number == 1:
            _check_version(line, path)
        elif line.strip() and not line.startswith("#"):
            yield number, line


def _check_version(line: str, path: Path | str) -> None:
    if line != FIRST_LINE:
        text = f"{line[:60]!r} is not {FIRST_LINE!r}, the version that is read: upgrade natsproxy"
        raise UnreadableCapture(f"line 1: {text}", path=path)


def _wrong(number: int, reason: str, path: Path | str) -> CaptureError:
    return CaptureError(f"line {number}: {reason}", path=path)


def preamble_ordinals(info: dict[str, Any]) -> dict[tuple[Direction, str], int]:
    """Return the next ordinal of each direction and leg from a preamble."""
    found = info.get("ordinals")
    return {
        (direction, leg): ordinal
        for direction in Direction
        for leg in ("in", "out")
        if isinstance(found, dict) and type(ordinal := found.get(f"{direction.label}_{leg}")) is int
    }
