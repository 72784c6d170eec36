"""`natsproxy config`: the settings that `natsproxy run` would have, and where each came from."""

from __future__ import annotations

import json

import click
from click.core import ParameterSource

from natsproxy.cli.run import run

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
    with run.make_context("natsproxy run", list(options)) as context:
        rows = {}
        for name, value in context.params.items():
            source = context.get_parameter_source(name)
            shown = value if isinstance(value, (int, float)) or value is None else str(value)
            rows[name] = {"value": shown, "source": _SOURCES.get(source, "default") if source else "default"}
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        value = "-" if row["value"] is None else row["value"]
        click.echo(f"{name:12} {value!s:32} {row['source']}")
