"""Payloads as lines: text as it is, JSON over several lines, escapes, or Base64, whatever reads best.

Pretty JSON changes only the white space between tokens: numbers, escapes and the order of members stay as the
program wrote them.  So the two styles of white space that libraries write round-trip exactly: none at all,
and one space after each `,` and `:`.

Readers raise ValueError with the reason.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Final

_SHORT: Final = 72  # bytes of JSON that stay on one line
_LINES: Final = 100_000  # lines of text that are shown as such
_DEEP: Final = 40  # levels of JSON that are worth a line each
_WIDTH: Final = 96
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPENING: Final = {"{", "["}
_CLOSING: Final = {"}", "]"}
_SPACED: Final = {",": ", ", ":": ": "}
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_SAMPLE: Final = 4096  # characters sampled to decide between escapes and Base64
_ODD: Final = re.compile(r"[^\x20-\x5b\x5d-\x7e]")
_PIECE: Final = re.compile(r"(?:\\x[0-9a-f]{2}|\\[rt\\]|[^\\]){0,95}(?:\\x[0-9a-f]{2}|\\[nrt\\]|[^\\])")
"""A line of escapes, which ends after a line feed or at its greatest length."""
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|[nrt\\])|\\")
_BYTES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
JSON: Final = "json"
SPACED: Final = "json spaced"


def dump_payload(body: bytes, *, pretty: bool = True) -> list[str]:
    """Return the lines of a payload.  pretty: long JSON gets a line for each member."""
    if not body:
        return []
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return dump_escaped(body)
    if pretty and len(text) > _SHORT and text[0] in _OPENING and (lines := _json_lines(text)):
        return lines
    parts = text.split("\n")
    if len(parts) <= _LINES and all(part.isprintable() and not part.endswith(" ") for part in parts):
        return [f"| {part}" if part else "|" for part in parts]
    return dump_escaped(body)


def dump_escaped(body: bytes) -> list[str]:
    """Return the lines of a payload with escapes; in Base64 where much of it would be escaped."""
    text = body.decode("utf-8", "surrogateescape")
    begin = text[:_SAMPLE]
    if len(_ODD.sub(_escape, begin)) > 2 * len(begin) or body.count(b"\n") > _LINES:
        coded = base64.b64encode(body).decode()
        return [f"= {coded[at : at + _WIDTH]}" for at in range(0, len(coded), _WIDTH)]
    # An editor would remove a blank at the end of a line.
    lines = _PIECE.findall(_ODD.sub(_escape, text))
    return [f"\\ {one[:-1]}\\x20" if one.endswith(" ") else f"\\ {one}" for one in lines]


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def load_payload(lines: list[str]) -> bytes:
    """Return the payload of lines."""
    parts: list[bytes] = []
    at = 0
    while at < len(lines):
        sign, _, rest = lines[at].partition(" ")
        if sign == "|":
            # The rest of a run of such lines, which are joined by line feeds.
            run = [rest]
            while at + 1 < len(lines) and lines[at + 1][:1] == "|":
                at += 1
                run.append(_after(lines[at]))
            parts.append(_encoded("\n".join(run)))
        elif sign == "\\":
            parts.append(_unescaped(rest))
        elif sign == "=":
            parts.append(_decoded(rest))
        elif sign == JSON and not parts:
            return _load_json("\n".join(lines))
        else:
            raise ValueError(f"{lines[at][:60]!r} is not a payload line: |, \\, = or json")
        at += 1
    return b"".join(parts)


def _after(line: str) -> str:
    if line[1:2] not in ("", " "):
        raise ValueError(f"{line[:60]!r} has no blank after |")
    return line[2:]


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("not UTF-8") from None


def _unescaped(text: str) -> bytes:
    parts: list[bytes] = []
    done = 0
    for found in _ESCAPE.finditer(text):
        code = found[1]
        if code is None:
            raise ValueError(
                f"{text[found.start() : found.start() + 4]!r} is not an escape: \\n, \\r, \\t, \\\\ or \\xNN"
            )
        parts += (_encoded(text[done : found.start()]), _BYTES.get(code) or bytes.fromhex(code[1:]))
        done = found.end()
    return b"".join((*parts, _encoded(text[done:])))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except ValueError:
        raise ValueError("not Base64 in groups of four characters") from None


# -- JSON


def pretty_json(text: str) -> list[str]:
    """Return JSON of any white space with a line for each member; no lines for other text, and deep JSON."""
    return _pretty(_TOKEN.findall(text)) if _is_json(text) else []


def _json_lines(text: str) -> list[str]:
    """Return JSON with a line for each member; no lines where it would not round-trip."""
    if not text.isprintable() or not _is_json(text):
        return []
    tokens = _TOKEN.findall(text)
    if text == _joined(tokens, {}):
        style = JSON
    elif text == _joined(tokens, _SPACED):
        style = SPACED
    else:
        return []
    lines = _pretty(tokens)
    return [f"{style} {lines[0]}", *lines[1:]] if lines else []


def _pretty(tokens: list[str]) -> list[str]:
    lines: list[str] = []
    line, depth = "", 0
    for part, before in zip(tokens, ["", *tokens], strict=False):
        empty = before in _OPENING and part in _CLOSING
        if part in _CLOSING:
            depth -= 1
        if (before in _OPENING or before == "," or part in _CLOSING) and not empty:
            lines.append(line)
            line = "  " * depth
        line += ": " if part == ":" else part
        if part in _OPENING:
            depth += 1
        if depth > _DEEP:
            return []
    return [*lines, line]


def _load_json(text: str) -> bytes:
    style = SPACED if text.startswith(f"{SPACED} ") else JSON
    text = text[len(style) :]
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}, at {text[error.pos : error.pos + 30]!r}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    return _encoded(_joined(_TOKEN.findall(text), _SPACED if style == SPACED else {}))


def _joined(tokens: list[str], style: dict[str, str]) -> str:
    return "".join([style.get(token, token) for token in tokens])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
