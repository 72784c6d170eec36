"""The settings of `natsproxy run` with the source of each, as plain values: no secret is among them.

Options for secrets hold the name of a file or of a variable.  One that leads to nothing may be the secret
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from natsproxy.config.secret_files import opens
from natsproxy.config.settings import OPTIONS

_SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}
Rows = dict[str, dict[str, Any]]
"""From the names of settings to `value` and `source`; `note` where the value is not shown."""
_UNOPENED = "cannot be opened, and is not shown"


def shown_settings(context: click.Context, *, plain_sizes: bool) -> Rows:
    """Return value and source of each setting in the context of `run`.

    plain_sizes: sizes are numbers of bytes, not texts.
    """
    rows: Rows = {}
    for option in OPTIONS:
        source = context.get_parameter_source(option.key)
        show = None if plain_sizes and option.metavar == "SIZE" else option.type.show
        value = _plain(context.params[option.key], show)
        row = {"value": value, "source": _SOURCES[source] if source else "default"}
        if option.type.secret and value is not None and not opens(value):
            row |= {"value": None, "note": _UNOPENED}
        rows[option.name] = row
    return rows


def _plain(value: Any, show: Callable[[Any], str] | None) -> Any:
    """Return a value as JSON and TOML can hold it.  show: writes it as text."""
    if isinstance(value, tuple):
        return [_plain(one, show) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if show is not None and value is not None:
        return show(value)
    return value if value is None or isinstance(value, bool | int) else str(value)
