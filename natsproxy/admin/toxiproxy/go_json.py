"""JSON bodies as Toxiproxy reads them, and its errors.

Go's decoder reads one value and leaves what follows it.  Keys match in any letter case, unknown ones are
ignored, and `null` leaves a field as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from natsproxy.protocol.gojson import fold


class ToxiproxyError(Exception):
    """An error with its status; the text is what the client gets."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def bad_body(detail: str) -> ToxiproxyError:
    """Return the error for a body that cannot be used."""
    return ToxiproxyError(400, f"bad request body: {detail}")


def missing(field: str) -> ToxiproxyError:
    """Return the error for a field that must not be empty."""
    return ToxiproxyError(400, f"missing required field: {field}")


def _reject(constant: str) -> Any:
    raise ValueError(f"invalid character {constant[0]!r} looking for beginning of value")


_DECODER: Final = json.JSONDecoder(parse_constant=_reject)


def first_value(body: bytes) -> Any:
    """Return the first JSON value of a body.  Raises ToxiproxyError."""
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text:
        raise bad_body("EOF")
    try:
        value = _DECODER.raw_decode(text)[0]
        if "\\ud" in text.lower():  # maybe half a surrogate pair, which cannot be encoded: Go reads U+FFFD
            written = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
            value = json.loads(written.decode("utf-16", "replace"))
        return value
    except RecursionError:
        raise bad_body("exceeded max depth") from None
    except ValueError as error:
        raise bad_body(str(error)) from None


Read = Callable[[Any], Any]
"""Checks the type of a value.  Raises ValueError with the name of the type that it should have."""


def text(value: Any) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise ValueError("string")
    return value


def boolean(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError("bool")
    return value


def whole(value: Any) -> int:
    """Read a whole number of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("int64")
    return value


def number(value: Any) -> float:
    """Read a number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 3e38:
        raise ValueError("float32")
    return value


def table(value: Any) -> Mapping[str, Any]:
    """Read an object."""
    if not isinstance(value, dict):
        raise ValueError("object")
    return value


def fields(value: Any, wanted: Mapping[str, Read]) -> dict[str, Any]:
    """Return the wanted fields that an object has.  Raises ToxiproxyError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_body(f"json: cannot unmarshal {_kind(value)} into Go value of type object")
    found = {}
    for key, item in value.items():
        name = fold(key)
        if name in wanted and item is not None:
            try:
                found[name] = wanted[name](item)
            except ValueError as error:
                message = f"json: cannot unmarshal {_kind(item)} into Go struct field .{name} of type {error}"
                raise bad_body(message) from None
    return found


def _kind(value: Any) -> str:
    kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    return kinds[type(value)]
