"""Payloads on a terminal: a beginning on one line, or all of it: JSON by member, text as it is, bytes as hex.

Control characters, marks that turn text around and bytes that are not UTF-8 are escaped: they are shown, and
the terminal does not obey them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len

from natsproxy.capture.text.payload import pretty_json
from natsproxy.printable import printable

_SAMPLE: Final = 4096  # bytes that tell text from other bytes
_ROW: Final = 16  # bytes in a line of hex


def cut(text: str, cells: int) -> str:
    """Return a text that takes at most so many cells of a terminal; one that is longer ends with `…`."""
    if len(text) * 2 <= cells or cell_len(text) <= cells:
        return text
    text = text[: max(0, cells - 1)]
    while text and cell_len(text) > cells - 1:
        text = text[:-1]
    return f"{text}…" if cells > 0 else ""


def one_line(body: bytes, cells: int) -> str:
    """Return the beginning of a payload, as much as fits into so many cells."""
    begin = body[: 4 * max(0, cells)]  # a character has four bytes at most
    if not _is_text(begin):
        return cut(begin[:cells].hex(" "), cells)
    text = begin.decode("utf-8", "backslashreplace" if len(begin) == len(body) else "ignore")
    if text[:1] in ("{", "["):  # lines and indentation of JSON say nothing
        text = " ".join(text.split())
    return cut(printable(text) + ("…" if len(begin) < len(body) else ""), cells)


def whole(body: bytes) -> Iterator[str]:
    """Yield the lines of a whole payload."""
    if not body:
        return
    if not _is_text(body[:_SAMPLE]) or (text := _decoded(body)) is None:
        yield from _hex(body)
        return
    lines = pretty_json(text) if text.lstrip()[:1] in ("{", "[") else []
    for line in lines or text.split("\n"):
        yield printable(line.removesuffix("\r"))


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _is_text(body: bytes) -> bool:
    """Tell whether bytes are text for the most part, their end apart, which may be inside a character."""
    sample = body[:_SAMPLE]
    text = sample.decode("utf-8", "ignore")
    if len(text.encode()) < len(sample) - 3:
        return False
    if text.isprintable():
        return True
    odd = sum(not char.isprintable() and char not in "\r\n\t" for char in text)
    return odd * 8 <= len(text)


def _hex(body: bytes) -> Iterator[str]:
    for at in range(0, len(body), _ROW):
        row = body[at : at + _ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{at:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {text}"
