"""Values as Go writes and reads them: times and durations in answers, numbers and booleans in queries.

nats-server answers a parameter that does not parse with the error of Go's `strconv`, to the letter.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final, NoReturn
from urllib.parse import unquote

from natsproxy.protocol.errors import quote
from natsproxy.units import DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND

_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BAD_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_YEAR: Final = 365 * DAY


Query = Mapping[str, str]
"""The parameters of a request; invalid UTF-8 becomes lone surrogates."""


class BadParameter(Exception):
    """A parameter of a request that nats-server refuses; the text is its answer."""


# -- written


def timestamp(wall: int) -> str:
    """Return a time (ns since 1970) as RFC 3339 with as many decimals as it needs."""
    seconds, ns = divmod(wall, SECOND)
    fraction = f".{ns:09}".rstrip("0") if ns else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"


def duration(ns: int) -> str:
    """Return a duration as Go's `String` writes it: `1m2.3s`, `3.8ms`, `41µs`."""
    if ns < SECOND:
        for unit, name in ((MILLISECOND, "ms"), (MICROSECOND, "µs")):
            if ns >= unit:
                return _decimal(ns, unit) + name
        return f"{ns}ns" if ns else "0s"
    hours, rest = divmod(ns, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return text + _decimal(rest, SECOND) + "s"


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    return f"{whole}.{rest:0{len(str(unit)) - 1}}".rstrip("0").rstrip(".")


def uptime(ns: int) -> str:
    """Return a duration as the server writes uptimes and idle times: `1y2d3h4m5s`."""
    years, rest = divmod(ns, _YEAR)
    days, rest = divmod(rest, DAY)
    hours, rest = divmod(rest, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    parts = ((years, "y"), (days, "d"), (hours, "h"), (minutes, "m"))
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts))
    return "".join(f"{number}{unit}" for number, unit in parts[first:]) + f"{rest // SECOND}s"


# -- read


def boolean(text: str, name: str) -> bool:
    """Read a boolean; "" is False.  Raises BadParameter."""
    if text in _TRUE:
        return True
    if text and text not in _FALSE:
        _refuse("boolean", name, "ParseBool", text, "invalid syntax")
    return False


def integer(text: str, name: str) -> int:
    """Read an int of 64 bits; "" is 0.  Raises BadParameter."""
    return _number(text, name, "int", "Atoi", -(1 << 63), (1 << 63) - 1)


def unsigned(text: str, name: str) -> int:
    """Read an unsigned int of 64 bits; "" is 0.  Raises BadParameter."""
    return _number(text, name, "uint64", "ParseUint", 0, (1 << 64) - 1)


def _number(text: str, name: str, kind: str, function: str, least: int, most: int) -> int:
    if not text:
        return 0
    if _INTEGER.fullmatch(text) is None or (least == 0 and not text[0].isdigit()):
        _refuse(kind, name, function, text, "invalid syntax")
    # The length is limited first: conversion takes quadratic time.
    if len(text.lstrip("+-0")) > 20 or not least <= int(text) <= most:
        _refuse(kind, name, function, text, "value out of range")
    return int(text)


def query(raw: bytes) -> Query:
    """Return the parameters as Go reads them: the first of a name counts, malformed ones are skipped."""
    found: dict[str, str] = {}
    for pair in raw.decode("ascii").split("&"):
        if ";" not in pair and not _BAD_ESCAPE.search(pair):
            name, _, value = pair.replace("+", " ").partition("=")
            found.setdefault(*(unquote(part, errors="surrogateescape") for part in (name, value)))
    return found


def written(text: str) -> bytes:
    """Return the bytes of a text from a query, which may be invalid UTF-8."""
    return text.encode(errors="surrogateescape")


def _refuse(kind: str, name: str, function: str, text: str, why: str) -> NoReturn:
    raise BadParameter(
        f"Error decoding {kind} for '{name}': strconv.{function}: parsing {quote(written(text))}: {why}"
    )
