"""JSON as nats-server reads and writes it: Go's `encoding/json`, with the bytes at hand.

Reading: keys match whatever their letter case, the last duplicate wins, `null` leaves a field as it was, a
wrong type is an error, so are bytes after the value; invalid UTF-8 inside strings is taken.
Writing: no blanks, and `<`, `>`, `&`, U+2028 and U+2029 as `\\u003c` and so on.

Text is bytes decoded with "surrogateescape", so what is not touched goes back to the very same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn

_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_FOLD: Final = str.maketrans({"\u017f": "s", "\u212a": "k"})
_HALVES: Final = re.compile("[\ud800-\udfff]")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def fold(key: str) -> str:
    """Return a key as Go compares it: letter case aside, the long s and the Kelvin sign included."""
    return key.translate(_FOLD).lower()


def to_text(raw: bytes) -> str:
    """Decode bytes so that `to_bytes` gives them back whatever they are."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Encode text that `to_text` made (a lone surrogate of other origin becomes `?`)."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_VALUES: Final = json.JSONDecoder(parse_constant=_reject)
_PAIRS: Final = json.JSONDecoder(parse_constant=_reject, object_pairs_hook=tuple)


def loads(raw: bytes) -> Any:
    """Read one JSON value.  Raises ValueError where Go does (and where it nests too deeply for us)."""
    return _decode(_VALUES, raw)


def load_pairs(raw: bytes) -> tuple[tuple[str, Any], ...] | None:
    """Read one JSON object as its members in order, duplicates included; None for `null`.

    Nested objects are tuples of pairs too.  Raises ValueError for anything else.
    """
    value = _decode(_PAIRS, raw)
    if value is None or isinstance(value, tuple):
        return value
    raise ValueError("not a JSON object")


def _decode(decoder: json.JSONDecoder, raw: bytes) -> Any:
    try:
        return decoder.decode(to_text(raw))
    except RecursionError:
        raise ValueError("JSON that nests too deeply") from None


def dumps(value: Any) -> bytes:
    """Write a value as Go does."""
    return to_bytes(json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES))


def fill(raw: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the members of the object `raw` that are in `fields` (name to type), as Go fills a struct.

    Absent and `null` members are absent.  Types: bool, int, str, list (of strings), dict (any object).  In
    their texts what is no Unicode (invalid UTF-8, half a surrogate pair) is U+FFFD, as in Go's.
    Raises ValueError for JSON that does not parse and for a wrong type.
    """
    found: dict[str, Any] = {}
    for key, value in load_pairs(raw) or ():
        name = fold(key)
        wanted = fields.get(name)
        if wanted is None or value is None:
            continue
        if not _fits(value, wanted):
            raise ValueError(f'"{name}" is not of type {wanted.__name__}')
        found[name] = _clean(value)
    return found


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _fits(value: Any, wanted: type) -> bool:
    if wanted is dict:
        return isinstance(value, tuple)
    if wanted is list:
        return isinstance(value, list) and all(item is None or isinstance(item, str) for item in value)
    return type(value) is wanted


class Token(NamedTuple):
    """A lexical token of JSON text and where it stands."""

    text: str
    start: int
    end: int


def lex(text: str) -> Iterator[Token]:
    """Yield the tokens of JSON text that is known to be valid; blanks are left out."""
    for found in _TOKEN.finditer(text):
        yield Token(found.group(), found.start(), found.end())


class Member(NamedTuple):
    """A member of an object in JSON text.

    key: folded.  start: where the key stands.  value, end: where the value stands.
    depth: 1 for members of the outermost object.
    """

    key: str
    start: int
    value: int
    end: int
    depth: int


def members(text: str) -> list[Member]:
    """Return all members of all objects in valid JSON text, at every depth, in order of their ends."""
    done: list[Member] = []
    pending: list[Member] = []
    depth = 0
    last = Token("", 0, 0)
    for token in lex(text):
        if last.text == ":":
            pending[-1] = pending[-1]._replace(value=token.start)
        if token.text in ",}]" and pending and pending[-1].depth == depth:
            done.append(pending.pop()._replace(end=last.end))
        if token.text in "{[":
            depth += 1
        elif token.text in "}]":
            depth -= 1
        elif token.text == ":":
            pending.append(Member(fold(json.loads(last.text)), last.start, 0, 0, depth))
        last = token
    return done
