"""`natsproxy config`: the settings that `natsproxy run` would have, and where each came from."""

from __future__ import annotations

import json
import os
from typing import Any

import click
from click.core import ParameterSource

from natsproxy.cli.run import run, unknown_variables
from natsproxy.config.build import inline_rules
from natsproxy.config.options import OPTIONS

_SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def config(as_json: bool, options: tuple[str, ...]) -> None:
    """Print the settings that `natsproxy run OPTIONS` would have, with where each came from.

    \b
    natsproxy config --config natsproxy.toml
    natsproxy config --upstream nats://127.0.0.1:4223 --json
    """
    for text in unknown_variables(os.environ):
        click.echo(f"Warning: {text}", err=True)
    rows: dict[str, dict[str, Any]] = {}
    with run.make_context("natsproxy run", list(options)) as context:
        for name in [option.key for option in OPTIONS]:
            value = context.params[name]
            source = context.get_parameter_source(name)
            row = {"value": _shown(name, value), "source": _SOURCES[source] if source else "default"}
            rows[name.replace("_", "-")] = row
        path = context.params["config"]
    if path is not None and context.params["rules"] is None:
        rules = inline_rules(path)
        if rules:
            rows["rules"] = {"value": [rule.name for rule in rules], "source": "file"}
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        value = row["value"]
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        click.echo(f"{name:20} {'-' if value in (None, '') else value!s:32} {row['source']}")


_NANOSECONDS = ("hold", "connect_timeout", "drain", "record_rotate_every", "record_flush")


def _shown(name: str, value: Any) -> Any:
    """Return a value for a person and for JSON: sizes in bytes, durations as text."""
    if name in _NANOSECONDS:
        return f"{value / 1e9:g}s"
    if isinstance(value, tuple):
        return [_shown(name, one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if value is None or isinstance(value, bool | int) else str(value)
