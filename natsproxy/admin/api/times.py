"""Times of the API: Unix time as text and in nanoseconds, durations as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from natsproxy.admin.api.operation import ApiError
from natsproxy.net.clock import BlockClocks
from natsproxy.units import parse_duration

_CLOCKS: Final = BlockClocks()


def wall(t: int) -> int:
    """Return the Unix time (ns) of a time of the proxy's clock (ns)."""
    return t + distance()


def distance() -> int:
    """Return the Unix time less the time of the proxy's clock (ns)."""
    mono, unix = _CLOCKS.read()
    return unix - mono


def iso(t: int) -> str:
    """Return a time of the proxy's clock (ns) as UTC text."""
    return iso_of(wall(t))


def iso_of(unix: int) -> str:
    """Return a Unix time (ns) as UTC text, with milliseconds."""
    moment = datetime.fromtimestamp(unix // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{unix // 1_000_000 % 1000:03}Z"


def ns(text: str, name: str) -> int:
    """Return a duration such as "30s" in ns, above zero.  Raises ApiError."""
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise ApiError(400, f"{name} {error}") from None
    if not duration:
        raise ApiError(400, f"{name} must be above 0, not {text!r}")
    return duration


def seconds(text: str, name: str) -> float:
    """Return a duration such as "30s" in seconds.  Raises ApiError."""
    return ns(text, name) / 1e9
