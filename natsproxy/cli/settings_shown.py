"""The settings of `natsproxy run` with the source of each, as plain values: no secret is among them.

Options that hold secrets hold the name of a file or of a variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from natsproxy.config.options import OPTIONS
from natsproxy.units import format_duration, format_size

_SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}
_FORMATS: dict[str, Callable[[int], str]] = {"DURATION": format_duration, "SIZE": format_size}
Rows = dict[str, dict[str, Any]]
"""From the names of settings to `value` and `source`."""


def shown_settings(context: click.Context, *, plain_sizes: bool) -> Rows:
    """Return value and source of each setting in the context of `run`.

    plain_sizes: sizes are numbers of bytes, not texts.
    """
    rows: Rows = {}
    for option in OPTIONS:
        source = context.get_parameter_source(option.key)
        form = None if plain_sizes and option.metavar == "SIZE" else _FORMATS.get(option.metavar)
        value = _plain(context.params[option.key], form)
        rows[option.name] = {"value": value, "source": _SOURCES[source] if source else "default"}
    return rows


def _plain(value: Any, form: Callable[[int], str] | None) -> Any:
    """Return a value as JSON and TOML can hold it.  form: writes its number as text."""
    if isinstance(value, tuple):
        return [_plain(one, form) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if form is not None and value is not None:
        return form(value)
    return value if value is None or isinstance(value, bool | int) else str(value)
