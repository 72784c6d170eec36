"""Durations, sizes and versions as people write them: one parser and one writer for each.

A duration has Go's form (`250ms`, `1m30s`), with days too (`7d`), and is a whole number of nanoseconds.  A
size is a number of bytes, with a binary (`64KiB`) or a decimal (`2MB`) unit.  A version is a tuple of three
numbers.

No duration is longer than `LONGEST`, and no size larger than `LARGEST`: sums of some stay within 64 bits,
which captures and native code have.

A parser raises ValueError with the end of a sentence that begins with the name of the setting:
`must be a duration such as "250ms" or "1m30s", not '1 day'`.
"""

from __future__ import annotations

import re
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
PIB: Final = 1 << 50
LONGEST: Final = 3650 * DAY
LARGEST: Final = PIB

_TIMES: Final = {
    "d": DAY,
    "h": HOUR,
    "m": MINUTE,
    "s": SECOND,
    "ms": MILLISECOND,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "ns": 1,
}
_TIME: Final = re.compile(r"(\d{1,18}(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)", re.ASCII)
_BYTES: Final = {
    "PiB": PIB,
    "TiB": TIB,
    "GiB": GIB,
    "MiB": MIB,
    "KiB": KIB,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "B": 1,
    None: 1,
}
_SIZE: Final = re.compile(r"(\d{1,18})\s*(B|KiB|MiB|GiB|TiB|PiB|kB|MB|GB|TB)?", re.ASCII)
_WRITTEN_TIMES: Final = ("d", "h", "m", "s", "ms")
_WRITTEN_SIZES: Final = ("PiB", "TiB", "GiB", "MiB", "KiB")
_NUMBERS: Final = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,2}", re.ASCII)


class TooLarge(ValueError):
    """A duration or a size beyond its bound."""


def bounded(number: float, most: int, limit: str, written: object) -> int:
    """Return a number as a whole one.  limit: `most` as it is written.

    Raises TooLarge with the end of a sentence, which quotes the number as it was written.
    """
    if not -most <= number <= most:
        raise TooLarge(f"must be at most {limit}, not {written!r}")
    return round(number)


def bounded_duration(ns: float, written: object, most: int = LONGEST) -> int:
    """Return a duration (ns) that is at most so long.  Raises TooLarge."""
    return bounded(ns, most, format_duration(most), written)


def bounded_size(size: int, written: object) -> int:
    """Return a size that is at most `LARGEST`.  Raises TooLarge."""
    return bounded(size, LARGEST, format_size(LARGEST), written)


def parse_duration(text: str, *, signed: bool = False) -> int:
    """Return the nanoseconds of a duration such as `250ms`, `1m30s` or `0`, at most `LONGEST`.

    signed: a sign may stand before it.  Raises ValueError.
    """
    rest = text.strip()
    sign = 1
    if signed and rest[:1] in ("+", "-"):
        sign = -1 if rest[0] == "-" else 1
        rest = rest[1:]
    if rest == "0":
        return 0
    parts = _TIME.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        raise ValueError(f'must be a duration such as "250ms" or "1m30s", not {text!r}')
    # Rounded: 1.1s is 1_100_000_000 ns, which a sum of floats may miss by a fraction.
    return sign * bounded_duration(sum(_in_ns(number, unit) for number, unit in parts), text)


def _in_ns(number: str, unit: str) -> float:
    # Whole numbers stay whole: a float has 53 bits.
    return int(number) * _TIMES[unit] if number.isdigit() else float(number) * _TIMES[unit]


def format_duration(ns: int) -> str:
    """Return a duration in the largest unit that it is a whole number of; 0 is `0s`."""
    if not ns:
        return "0s"
    unit = next((unit for unit in _WRITTEN_TIMES if ns % _TIMES[unit] == 0), "ns")
    return f"{ns // _TIMES[unit]}{unit}"


def short_duration(ns: int) -> str:
    """Return a duration in three digits or so, for people: `1.23ms`, `45µs`, `3m20s`."""
    if ns < 0:
        return f"-{short_duration(-ns)}"
    if ns >= 100 * SECOND:
        minutes, seconds = divmod(round(ns / SECOND), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
    # The unit in which the rounded number is below 1,000.
    unit = next((unit for unit in ("s", "ms", "µs") if ns >= 0.9995 * _TIMES[unit]), "ns")
    return f"{ns / _TIMES[unit]:.3g}{unit}"


def in_seconds(seconds: float) -> str:
    """Return a time for sentences, in seconds with a digit behind the point at most: `38.2 s`, `600 s`."""
    return f"{round(seconds, 1):,g} s"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `512`, `64KiB` or `2 MB`, at most `LARGEST`.  Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'must be a number of bytes such as 512 or "64KiB", not {text!r}')
    return bounded_size(int(found[1]) * _BYTES[found[2]], text)


def format_size(size: int) -> str:
    """Return a size in the largest binary unit that it is a whole number of; bytes have no unit."""
    unit = next((unit for unit in _WRITTEN_SIZES if size and size % _BYTES[unit] == 0), None)
    return f"{size // _BYTES[unit]}{unit or ''}"


def short_size(size: int) -> str:
    """Return a size in three digits or so, for people: `12B`, `1.5KiB`."""
    unit = next((unit for unit in _WRITTEN_SIZES if size >= _BYTES[unit]), "B")
    number = size / _BYTES[unit]
    return f"{number:.3g}{unit}" if number < 1000 else f"{number:.0f}{unit}"


def parse_version(text: str) -> tuple[int, int, int]:
    """Return the leading numbers of a version: `2.12.1-dev` is (2, 12, 1), `2.12` is (2, 12, 0).

    A text without a leading number is (0, 0, 0): peers may send anything.
    """
    found = _NUMBERS.match(text)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    major, minor, patch = numbers + [0] * (3 - len(numbers))
    return major, minor, patch
