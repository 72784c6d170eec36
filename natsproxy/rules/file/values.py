"""Converters for the values in a rules file, one per type of setting; `converters` has the basic ones.

A converter takes a value of TOML or JSON and returns the value for the rule; it raises ValueError with the
end of a sentence that begins with the key ("must be a number from 0 to 1, not 1.2").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, tzinfo
from ipaddress import ip_network
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from natsproxy.converters import above_zero as above_zero
from natsproxy.converters import boolean as boolean
from natsproxy.converters import duration as duration
from natsproxy.converters import line as line
from natsproxy.converters import one_of as one_of
from natsproxy.converters import size as size
from natsproxy.converters import text as text
from natsproxy.protocol.subjects import is_valid_strict
from natsproxy.rules.model import seeded_random
from natsproxy.rules.model.gate import Window
from natsproxy.rules.model.rule import Convert
from natsproxy.units import DAY, HOUR, MINUTE, bounded_duration
from natsproxy.wire.ops import BY_TOKEN, Direction, Op

MOST: Final = 1 << 53
"""The largest number: JSON has no larger ones."""
_HOURS: Final = re.compile(r"([0-9]{2}):([0-5][0-9])-([0-9]{2}):([0-5][0-9])", re.ASCII)
LONGEST_DELAY: Final = DAY
"""The longest delay of one rule: delays of several rules add up."""


def count(value: Any, least: int = 1, most: int = MOST) -> int:
    """Read a whole number of at least `least` and at most `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"must be a whole number of at least {least}, not {value!r}")
    if value > most:
        raise ValueError(f"must be at most {most}, not {value!r}")
    return value


def count_to(most: int) -> Convert:
    """Return a converter for whole numbers from 1 to `most`."""
    return lambda value: count(value, 1, most)


def natural(value: Any) -> int:
    """Read a whole number, zero included."""
    return count(value, 0)


def status(value: Any) -> int:
    """Read a status code of three digits."""
    if count(value) not in range(100, 1000):
        raise ValueError(f"must be a status code of three digits, not {value!r}")
    return int(value)


def network(value: Any) -> str:
    """Read an IP address, or a network such as "10.0.0.0/8"."""
    try:
        ip_network(text(value), strict=False)
    except ValueError:
        raise ValueError(f'must be an IP address or a network such as "10.0.0.0/8", not {value!r}') from None
    return str(value)


def number_within(least: float, most: float) -> Convert:
    """Return a converter for numbers in a range."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}, not {value!r}")
        return float(value)

    return read


def probability(value: Any) -> float:
    """Read a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"must be a number from 0 to 1, not {value!r}")
    return float(value)


def delay_time(value: Any) -> int:
    """Read a duration of at most `LONGEST_DELAY`."""
    return bounded_duration(duration(value), value, LONGEST_DELAY)


def several(convert: Convert) -> Convert:
    """Return a converter for one value or a list of them; a tuple."""

    def read(value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            raise ValueError("must not be an empty list")
        return tuple(convert(item) for item in items)

    return read


def table(convert: Convert) -> Convert:
    """Return a converter for a table of text keys."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a table, not {value!r}")
        result = {}
        for key, item in value.items():
            try:
                result[str(key)] = convert(item)
            except ValueError as error:
                raise ValueError(f"has {key!r}, which {error}") from None
        return result

    return read


def pattern(value: Any) -> bytes:
    """Read a subject pattern; bytes."""
    raw = text(value).encode("utf-8", "surrogateescape")
    if not is_valid_strict(raw):
        raise ValueError(f"must be a valid subject, which {value!r} is not")
    return raw


def op(value: Any) -> Op:
    """Read an op by its name on the wire, in any letter case; `OK` and `ERR` need no sign."""
    name = text(value).upper().encode()
    found = BY_TOKEN.get(name) or {b"OK": Op.OK, b"ERR": Op.ERR, b"PUB": Op.PUB}.get(name)
    if found is None:
        raise ValueError(f"must name an operation ({', '.join(t.decode() for t in BY_TOKEN)}), not {value!r}")
    return found


def direction(value: Any) -> Direction:
    """Read "c2s" or "s2c"."""
    return Direction.S2C if one_of("c2s", "s2c")(value) == "s2c" else Direction.C2S


def window(value: Any) -> Window:
    """Read `["2s", "5s"]`, `["2s"]` (to the end) or `["+2s", "+5s"]` (since the rule came into force)."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= 2:
        raise ValueError(f'must be a pair such as ["2s", "5s"], not {value!r}')
    since_rule = [isinstance(time, str) and time.startswith("+") for time in value]
    if any(since_rule) != all(since_rule):
        raise ValueError(f"must have a + before both times or before none, not {value!r}")
    times = [duration(time[1:] if plus else time) for time, plus in zip(value, since_rule, strict=True)]
    start, end = times[0], times[1] if len(times) == 2 else None
    if end is not None and end <= start:
        raise ValueError(f"must end after it starts, not {value!r}")
    return Window(start, end, since_rule[0])


def hours(value: Any) -> tuple[int, int]:
    """Read times of the day, "22:00-06:00"; ns since midnight."""
    found = _HOURS.fullmatch(text(value))
    start, end = (0, 0) if found is None else (_time(*found.group(1, 2)), _time(*found.group(3, 4)))
    if start == end or start >= DAY or end > DAY:
        raise ValueError(f'must be two times of the day such as "22:00-06:00", not {value!r}')
    return start, end


def _time(hour: str, minute: str) -> int:
    return int(hour) * HOUR + int(minute) * MINUTE


def zone(value: Any) -> tzinfo:
    """Read a time zone by its name in the IANA data base; "UTC" needs none."""
    if text(value) == "UTC":
        return UTC
    try:
        return ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f'must be a time zone of this machine such as "Europe/Berlin", not {value!r} (one without time '
            "zones needs the package tzdata)"
        ) from None


def firings(value: Any) -> dict[str, frozenset[int]]:
    """Read an exact list of firings: connection key to the numbers of the matches."""
    return {key: frozenset(found) for key, found in table(several(count))(value).items()}


_DISTRIBUTIONS: Final[dict[str, tuple[Callable[..., seeded_random.Distribution], dict[str, Convert]]]] = {
    "constant": (seeded_random.constant, {"value": delay_time}),
    "uniform": (seeded_random.uniform, {"min": delay_time, "max": delay_time}),
    "normal": (seeded_random.normal, {"mean": delay_time, "stddev": delay_time}),
    # Beyond these bounds samples are larger than any float.
    "lognormal": (seeded_random.lognormal, {"median": delay_time, "sigma": number_within(0.001, 10)}),
    "pareto": (seeded_random.pareto, {"scale": delay_time, "shape": number_within(0.1, 1000)}),
    "empirical": (seeded_random.empirical, {"values": several(delay_time)}),
}
_TAILED: Final = ("normal", "lognormal", "pareto")
"""Distributions whose samples may be longer than their parameters."""


def delay(value: Any) -> seeded_random.Distribution:
    """Read a duration, or a table that names a distribution and its parameters; samples are nanoseconds."""
    if not isinstance(value, Mapping):
        return seeded_random.constant(delay_time(value))
    given = dict(value)
    name = given.pop("distribution", None)
    if name not in _DISTRIBUTIONS:
        raise ValueError(f"needs a distribution, one of {', '.join(_DISTRIBUTIONS)}, not {name!r}")
    if "capture" in given:
        raise ValueError("can refer to a capture only in a rules file")
    make, parameters = _DISTRIBUTIONS[name]
    if set(given) != set(parameters):
        raise ValueError(f"of the {name} distribution takes {' and '.join(parameters)}")
    try:
        values = [convert(given[key]) for key, convert in parameters.items()]
    except ValueError as error:
        raise ValueError(f"of the {name} distribution: a parameter {error}") from None
    if name == "uniform" and values[0] > values[1]:
        raise ValueError("of the uniform distribution: min is above max")
    made = make(*values)
    return made.at_most(LONGEST_DELAY) if name in _TAILED else made
