"""Values and times of the text form: msgpack values as JSON or bare words, offsets, wall clocks.

Readers raise ValueError with the reason.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, Final

_UNITS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}  # decimals that are whole ns
_OFFSET: Final = re.compile(r"([+-]?)(\d{1,19})(?:\.(\d{1,9}))?(s|ms|us|ns)", re.ASCII)
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)
_JSON: Final = re.compile(
    r'["\[{]|(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|-?Infinity|NaN|true|false|null)$', re.ASCII
)
_BARE: Final = re.compile(r"[\w.-]+", re.ASCII)
_MEMBER: Final = re.compile(r'("(?:[^"\\]|\\.)*"|[\w.-]+):(?: (.*))?', re.ASCII)
_SPECIAL: Final = re.compile(r"[^\x20-\x7e]")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_YEARS: Final = 250 * 366 * 86_400  # seconds around 1970 within the range of a 64-bit clock


def dump_offset(ns: int) -> str:
    """Return an offset, in seconds or milliseconds, without superfluous digits."""
    unit = "ms" if abs(ns) < 10**9 else "s"
    whole, part = divmod(abs(ns), 10 ** _UNITS[unit])
    digits = f"{part:0{_UNITS[unit]}}".rstrip("0")
    return f"{'-' if ns < 0 else '+'}{whole}{'.' if digits else ''}{digits}{unit}"


def load_offset(text: str) -> int:
    """Return the nanoseconds of an offset."""
    found = _OFFSET.fullmatch(text)
    if found is None or len(found[3] or "") > _UNITS[found[4]]:
        raise ValueError(f"{_cut(text)} is not an offset such as +1.5ms")
    places = _UNITS[found[4]]
    ns: int = int(found[2]) * 10**places + int((found[3] or "").ljust(places, "0") or 0)
    return -ns if found[1] == "-" else ns


def dump_time(wall: int) -> str:
    """Return a wall clock (Unix ns) in UTC, as exact as it is; an offset from 1970 for a year beyond 2200."""
    seconds, part = divmod(wall, 10**9)
    if abs(seconds) > _YEARS:
        return dump_offset(wall)
    moment = _EPOCH + datetime.timedelta(seconds=seconds)
    digits = f"{part:09}".rstrip("0")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{'.' if digits else ''}{digits}Z"


def load_time(text: str) -> int:
    """Return the Unix ns of a wall clock."""
    found = _TIME.fullmatch(text)
    if found is None:
        if _OFFSET.fullmatch(text):
            return load_offset(text)
        raise ValueError(f"{_cut(text)} is not a time such as 2026-11-22T09:38:51.653Z")
    try:
        moment = datetime.datetime.fromisoformat(f"{found[1]}+00:00") - _EPOCH
    except ValueError:
        raise ValueError(f"{_cut(text)} is a time that does not exist") from None
    return (moment.days * 86_400 + moment.seconds) * 10**9 + int((found[2] or "").ljust(9, "0"))


def dump_value(value: Any) -> str:
    """Return a msgpack value as text: a string as it is where that is unambiguous, JSON otherwise."""
    return _dump(_plain(value))


def load_value(text: str) -> Any:
    """Return the value of a text."""
    return _rich(_load(text))


def dump_members(values: dict[Any, Any]) -> list[str]:
    """Return a map as lines `key: value`."""
    return [
        f"{key if _BARE.fullmatch(key) else _json(key)}: {_dump(value)}"
        for key, value in _plain(values).items()
    ]


def load_members(lines: list[str]) -> dict[Any, Any]:
    """Return the map of lines `key: value`."""
    found: dict[str, Any] = {}
    for line in lines:
        parts = _MEMBER.fullmatch(line)
        if parts is None:
            raise ValueError(f"{_cut(line)} is not a line such as key: value")
        key = _load(parts[1]) if parts[1].startswith('"') else parts[1]
        if key in found:
            raise ValueError(f"{_cut(key)} is given twice")
        found[key] = _load(parts[2] or "")
    rich = _rich(found)
    if not isinstance(rich, dict):
        raise ValueError("not a map")
    return rich


def _dump(value: Any) -> str:
    bare = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    return value if bare and not _JSON.match(value) else _json(value)


def _json(value: Any) -> str:
    # Unprintable characters occur inside of strings only, where JSON has escapes for them.
    return _SPECIAL.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _load(text: str) -> Any:
    if not _JSON.match(text):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_cut(text)} is not JSON: {error}") from None


def _is_plain(values: dict[Any, Any]) -> bool:
    return all(isinstance(key, str) and not key.startswith("$") for key in values)


def _plain(value: Any) -> Any:
    """Return a msgpack value in the types of JSON; bytes, and maps that JSON lacks, are marked with `$`."""
    if isinstance(value, bytes):
        return {"$bytes": value.decode("utf-8", "surrogateescape")}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        if _is_plain(value):
            return {key: _plain(one) for key, one in value.items()}
        return {"$map": [[_plain(key), _plain(one)] for key, one in value.items()]}
    return value


def _rich(value: Any) -> Any:
    """Undo `_plain`."""
    if isinstance(value, list):
        return [_rich(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$bytes"} and isinstance(value["$bytes"], str):
        return value["$bytes"].encode("utf-8", "surrogateescape")
    if set(value) == {"$map"}:
        try:
            return {_rich(key): _rich(one) for key, one in value["$map"]}
        except TypeError:
            raise ValueError("$map is a list of pairs") from None
    return {key: _rich(one) for key, one in value.items()}


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    return json.dumps(char)[1:-1]


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
