"""JSON as nats-server reads and writes it: Go's `encoding/json`, on bytes.

Reading: keys match in any letter case, the last duplicate wins, `null` leaves a field unchanged; a wrong type
is an error, and so are bytes after the value; invalid UTF-8 inside strings is accepted.
Writing: no blanks, and `<`, `>`, `&`, U+2028 and U+2029 are escaped (`\\u003c` and so on).

Text is bytes decoded with "surrogateescape", so untouched text encodes to the very same bytes again.

Edits of JSON (`rewrite`, `redaction`, the API bodies of `rules/rewriting`) need offsets in the text, which
`json` does not give: `lex` and `members` find them, in text that `json` has already accepted.

Flat objects without anything unusual, such as the CONNECT of most clients, are read by `_flat` (compiled from
Cython) where it was built; `NATSPROXY_PURE=1` or a machine without a C compiler does without.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

_flat: Callable[[bytes, Mapping[str, type]], dict[str, Any] | None] | None = None
if os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    with suppress(ImportError):  # not built: `json` reads all
        from natsproxy.protocol import _flat as _compiled  # type: ignore[attr-defined, unused-ignore]

        _flat = _compiled.fill

_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
# The only two characters outside ASCII that fold to ASCII letters; Go's decoder knows them.
_FOLD: Final = str.maketrans({"\u017f": "s", "\u212a": "k"})
# Lone halves of surrogate pairs, those of "surrogateescape" included.
_HALVES: Final = re.compile("[\ud800-\udfff]")
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
# A member with a scalar value, by far the most common; a string, with its colon where it is a key; a bracket,
# comma or colon; or another value.
_PLACE: Final = re.compile(
    r'"([^"\\]*)"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^\s"{}\[\],:]+)'
    r'|("[^"\\]*(?:\\.[^"\\]*)*")(\s*:\s*)?|([{}\[\],])|[^\s"{}\[\],:]+',
    re.DOTALL,
)


def fold(key: str) -> str:
    """Return a key as Go compares it: letter case aside, the long s and the Kelvin sign included."""
    return key.lower() if key.isascii() else key.translate(_FOLD).lower()


def to_text(raw: bytes) -> str:
    """Decode any bytes so that `to_bytes` returns the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Encode text that `to_text` made; a lone surrogate of any other origin becomes `?`."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


# Python's decoder takes NaN and Infinity, which Go refuses.
def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_VALUES: Final = json.JSONDecoder(parse_constant=_reject)
_PAIRS: Final = json.JSONDecoder(parse_constant=_reject, object_pairs_hook=tuple)


def loads(raw: bytes) -> Any:
    """Read one JSON value.  Raises ValueError where Go does, and where Python's parser nests too deeply."""
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
    except RecursionError:  # hostile input: Go's limit is 10,000 levels, Python's is lower
        raise ValueError("JSON that nests too deeply") from None


def dumps(value: Any) -> bytes:
    """Write a value as Go does."""
    return to_bytes(json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES))


def fill(raw: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the members of the object `raw` that are in `fields`.

    As `fill_pairs`; raises ValueError for JSON that does not parse, too.
    """
    found = None if _flat is None else _flat(raw, fields)
    return fill_pairs(load_pairs(raw) or (), fields) if found is None else found


def fill_pairs(pairs: Iterable[tuple[str, Any]], fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the members of an object that are in `fields` (name to type), as Go fills a struct.

    Absent and `null` members are left out.  Types: bool, int, str, list (of strings), dict (any object).
    Text that is not Unicode (invalid UTF-8, half a surrogate pair) becomes U+FFFD, as in Go.
    Raises ValueError for a wrong type.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
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
        return value if value.isascii() else _HALVES.sub("\ufffd", value)
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _fits(value: Any, wanted: type) -> bool:
    if wanted is dict:
        return isinstance(value, tuple)
    if wanted is list:
        return isinstance(value, list) and all(item is None or isinstance(item, str) for item in value)
    return type(value) is wanted  # not isinstance: True is no number to Go


class JsonToken(NamedTuple):
    """A lexical token of JSON text, from `start` to `end`."""

    text: str
    start: int
    end: int


def lex(text: str) -> Iterator[JsonToken]:
    """Yield the tokens of JSON text that is known to be valid; blanks are left out."""
    for found in _TOKEN.finditer(text):
        yield JsonToken(found.group(), found.start(), found.end())


class Member(NamedTuple):
    """A member of an object in JSON text.

    key: folded.  start: the offset of the key.  value, end: where the value starts and ends.
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
    pending: list[tuple[str, int, int, int]] = []  # key, start, value, depth
    depth = end = 0
    # A member ends before the comma or the brace of its own depth, where the token before ended.
    for found in _PLACE.finditer(text):
        plain, value, key, colon, mark = found.groups()
        if value:
            done.append(Member(fold(plain), found.start(), found.start(2), found.end(), depth))
        elif colon:
            name = json.loads(key) if "\\" in key else key[1:-1]
            pending.append((fold(name), found.start(), found.end(), depth))
        elif mark == "{" or mark == "[":
            depth += 1
        elif mark:
            if pending and pending[-1][3] == depth:
                name, start, value, _ = pending.pop()
                done.append(Member(name, start, value, end, depth))
            depth -= mark != ","
        end = found.end()
    return done


def rewrite(raw: bytes, *, remove: Collection[str] = (), set: Mapping[str, Any] | None = None) -> bytes:
    """Return a JSON object without the members `remove` and with those of `set`; `null` is an empty one.

    Names are lower case; members match in any letter case.  A member of `set` is replaced where it stands
    (its duplicates are removed) or added at the end; a member that has its value already keeps its bytes.
    Returns `raw` itself when nothing changes.  Raises ValueError for anything but an object and `null`.
    """
    load_pairs(raw)
    text = to_text(raw)
    wanted = dict(set or {})
    top = [member for member in members(text) if member.depth == 1]
    last = {member.key: member for member in top}
    parts: list[str] = []
    changed = False
    for member in top:
        name = member.key
        # A reader takes the last duplicate, so that is the one to replace.
        if name in remove or (name in wanted and member is not last[name]):
            changed = True
        elif name not in wanted:
            parts.append(text[member.start : member.end])
        else:
            value = wanted.pop(name)
            if loads(to_bytes(text[member.value : member.end])) == value:
                parts.append(text[member.start : member.end])
            else:
                parts.append(text[member.start : member.value] + to_text(dumps(value)))
                changed = True
    added = [to_text(dumps(name) + b":" + dumps(value)) for name, value in wanted.items()]
    if not changed and not added:
        return raw
    return to_bytes("{" + ",".join(parts + added) + "}")
