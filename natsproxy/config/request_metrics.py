"""The setting of the metrics of requests: `off`, `templates`, or a list of subject patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from natsproxy import converters
from natsproxy.errors import ConfigError
from natsproxy.protocol.request_meter import ROOM, RequestMeter
from natsproxy.protocol.subjects import is_valid_subscribe

OFF: Final = "off"
TEMPLATES: Final = "templates"


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The requests that are measured.

    on: any.  patterns: of their subjects; None: all subjects, by their templates.
    """

    on: bool = False
    patterns: tuple[bytes, ...] | None = None

    def meter(self) -> RequestMeter | None:
        """Return a new meter of them, None where there are none."""
        return RequestMeter(self.patterns) if self.on else None


def read_request_metrics(value: Any) -> str:
    """Read one of the values.  Raises ValueError."""
    text = converters.line(value)
    if text not in (OFF, TEMPLATES) and not is_valid_subscribe(text.encode()):
        raise ValueError(f"must be {OFF}, {TEMPLATES} or a subject pattern, not {text!r}")
    return text


def joined(values: tuple[str, ...]) -> RequestMetrics:
    """Return what all values say together.  Raises ConfigError."""
    words = [one for one in values if one in (OFF, TEMPLATES)]
    if words and len(values) > 1:
        raise ConfigError(f"request-metrics {words[0]} excludes any other value")
    if len(values) > ROOM:
        raise ConfigError(f"request-metrics takes {ROOM} subject patterns at most")
    if words or not values:
        return RequestMetrics(words == [TEMPLATES])
    return RequestMetrics(True, tuple(dict.fromkeys(one.encode() for one in values)))
