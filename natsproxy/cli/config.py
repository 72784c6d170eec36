"""`natsproxy config`: the settings that `natsproxy run` would have, and where each came from."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from natsproxy.cli.run import run, unknown_variables
from natsproxy.config.build import inline_rules
from natsproxy.config.options import OPTIONS
from natsproxy.units import format_duration, format_size

_SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}
_AS_WRITTEN: dict[str, Callable[[int], str]] = {"DURATION": format_duration, "SIZE": format_size}


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--json", "as_json", is_flag=True, help="One JSON object; sizes are bytes.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]")
@click.pass_context
def config(context: click.Context, as_json: bool, options: tuple[str, ...]) -> None:
    """Print the settings of natsproxy run.

    Those that it would have with the same options, and where each comes from: flag, environment, file or
    default.  Values are as one writes them in a file, texts apart from their quotes.

    \b
    natsproxy config
    natsproxy config --config natsproxy.toml
    natsproxy config --upstream nats://127.0.0.1:4223 --json
    """
    for text in unknown_variables(os.environ):
        click.echo(f"Warning: {text}", err=True)
    rows = _rows(context.command_path, list(options), as_json)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        value = row["value"]
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        elif isinstance(value, bool):
            value = str(value).lower()
        needed = "needed by natsproxy run" if name == "upstream" and value is None else row["source"]
        click.echo(f"{name:20} {'-' if value in (None, '') else value!s:32} {needed}")


def _rows(title: str, options: list[str], as_json: bool) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    with _asking().make_context(title, options) as context:
        for option in OPTIONS:
            source = context.get_parameter_source(option.key)
            write = None if as_json and option.metavar == "SIZE" else _AS_WRITTEN.get(option.metavar)
            value = _shown(context.params[option.key], write)
            rows[option.name] = {"value": value, "source": _SOURCES[source] if source else "default"}
        path, file = context.params["config"], context.params["rules"]
    if path is not None and file is None:
        rules = inline_rules(path)
        if rules:
            rows["rules"] = {"value": [rule.name for rule in rules], "source": "file"}
    return rows


def _asking() -> click.Command:
    """Return `run` as it is asked about: an option that it needs may be missing."""
    asking = copy.copy(run)
    asking.params = [copy.copy(param) for param in run.params]
    for param in asking.params:
        param.required = False
    return asking


def _shown(value: Any, write: Callable[[int], str] | None) -> Any:
    """Return a value for a person and for JSON."""
    if isinstance(value, tuple):
        return [_shown(one, write) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if write is not None and value is not None:
        return write(value)
    return value if value is None or isinstance(value, bool | int) else str(value)
