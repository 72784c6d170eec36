"""`natsproxy config`: the settings of `natsproxy run`, each with the layer that it came from."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from natsproxy.cli.options import Rows, shown_settings
from natsproxy.cli.run import run, unknown_variables
from natsproxy.config.files import inline_rules
from natsproxy.rules.file.serialize import to_toml, value_to_toml


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes are in bytes.")
@click.option("--toml", "as_toml", is_flag=True, help="Print a file for --config, [[rules]] included.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF RUN]")
@click.pass_context
def config(context: click.Context, as_json: bool, as_toml: bool, options: tuple[str, ...]) -> None:
    """Print the settings of natsproxy run and the source of each.

    The settings are those of natsproxy run with the same options.  A source is a flag, the environment, the
    file or the default.

    \b
    natsproxy config
    natsproxy config --config natsproxy.toml
    natsproxy config --upstream nats://127.0.0.1:4223 --json
    natsproxy config --upstream nats://127.0.0.1:4223 --toml > natsproxy.toml
    """
    if as_json and as_toml:
        raise click.UsageError("--json and --toml are mutually exclusive")
    for text in unknown_variables(os.environ):
        click.echo(f"Warning: {text}", err=True)
    rows, file = _settings(context.command_path, list(options), as_json)
    if as_toml:
        click.echo("\n".join(_toml_lines(rows, file)))
        return
    inline = inline_rules(file) if file is not None and rows["rules"]["value"] is None else None
    if inline:
        rows["rules"] = {"value": [rule.name for rule in inline], "source": "file"}
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(map(len, rows))
    for name, row in rows.items():
        source = f"{row['source']}: {row['note']}" if "note" in row else row["source"]
        click.echo(_table_line(name, width, row["value"], source))


def _settings(title: str, options: list[str], as_json: bool) -> tuple[Rows, Path | None]:
    """Return value and source of each setting, and the configuration file."""
    with _run_with_nothing_required().make_context(title, options) as context:
        return shown_settings(context, plain_sizes=as_json), context.params["config"]


def _run_with_nothing_required() -> click.Command:
    """Return a copy of `run` that accepts a missing upstream: the defaults can be shown without one."""
    relaxed = copy.copy(run)
    relaxed.params = [copy.copy(param) for param in run.params]
    for param in relaxed.params:
        param.required = False
    return relaxed


def _table_line(name: str, width: int, value: Any, source: str) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    elif isinstance(value, bool):
        value = str(value).lower()
    note = "needed by natsproxy run" if name == "upstream" and not value else source
    return f"{name:{width}} {'-' if value in (None, '') else value!s:32} {note}"


def _toml_lines(rows: Rows, file: Path | None) -> Iterator[str]:
    """Yield the lines of a configuration file, with the rules of the present one."""
    for name, row in rows.items():
        value = row["value"]
        if not value and name == "upstream":
            yield '# upstream = "nats://HOST:PORT"  # needed by natsproxy run'
        elif "note" in row:
            yield f"# {name} {row['note']}"
        elif value not in (None, []):
            yield f"{name} = {value_to_toml(value)}  # {row['source']}"
    inline = inline_rules(file) if file is not None and rows["rules"]["value"] is None else None
    if inline is not None:  # an empty list clears rules, no list keeps them
        yield ("\n" if inline else "") + to_toml(rule.table for rule in inline).rstrip()
