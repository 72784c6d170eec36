"""Converters of single values that users write, in TOML, JSON or as text: for rules files and for settings.

A converter returns the typed value; it raises ValueError with the end of a sentence that begins with the name
of the key ("must be true or false, not 1").
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from natsproxy.units import bounded_duration, bounded_size, parse_duration, parse_size

T = TypeVar("T")


def text(value: Any) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {value!r}")
    return value


def line(value: Any) -> str:
    """Read a string without line ends."""
    if "\r" in text(value) or "\n" in value:
        raise ValueError(f"must be one line, not {value!r}")
    return str(value)


def boolean(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def duration(value: Any) -> int:
    """Read a duration such as "250ms" or "1m30s" (or a bare 0); nanoseconds."""
    if isinstance(value, bool) or (value != 0 and not isinstance(value, str)):
        raise ValueError(f'must be a duration such as "250ms" or "1m30s", not {value!r}')
    return parse_duration(str(value))


def duration_or_seconds(value: Any) -> int:
    """Read a duration such as "250ms", or a number of seconds; nanoseconds."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return duration(value)
    # `float` takes "nan" and "inf" too; "nan" fails both comparisons.
    if isinstance(value, bool) or not 0 <= seconds < float("inf"):
        raise ValueError(f'must be a duration such as "250ms" or a number of seconds, not {value!r}')
    return bounded_duration(seconds * 1e9, value)


def size(value: Any) -> int:
    """Read a number of bytes: whole, or a text such as "64KiB"."""
    if isinstance(value, bool) or not (isinstance(value, str) or (isinstance(value, int) and value >= 0)):
        raise ValueError(f'must be a number of bytes such as 512 or "64KiB", not {value!r}')
    return parse_size(value) if isinstance(value, str) else bounded_size(value, value)


def whole(value: Any) -> int:
    """Read a signed whole number of at most 64 bits, the most that captures can hold."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"must be a whole number of at most 64 bits, not {value!r}")
    return number


def percent(value: Any) -> float:
    """Read a number from 0 to 100; a text may end in %."""
    try:
        number = float(value.removesuffix("%") if isinstance(value, str) else value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 <= number <= 100:  # "nan" fails it too
        raise ValueError(f"must be a number of percents from 0 to 100, not {value!r}")
    return number


def path(value: Any) -> Path:
    """Read a path; `~` is the home folder."""
    if isinstance(value, Path):
        return value
    if not text(value).strip():  # an empty path would be the current folder
        raise ValueError(f"must be the name of a file, not {value!r}")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~ and an unknown user") from None


def above_zero(convert: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return `convert` for values that must not be zero."""

    def read(value: Any) -> T:
        result = convert(value)
        if not result:
            raise ValueError(f"must be more than zero, not {value!r}")
        return result

    return read


def one_of(*choices: str) -> Callable[[Any], str]:
    """Return a converter for one of a few words."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be {' or '.join(map(repr, choices))}, not {value!r}")
        return str(value)

    return read
