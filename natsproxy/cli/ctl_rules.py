"""`natsproxy ctl rules`: the rules of a running proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from natsproxy.cli.admin_client import AdminClient, admin_options, json_option, names
from natsproxy.cli.list_by_default import ListByDefault
from natsproxy.cli.paths import FilePath
from natsproxy.cli.table import show_table
from natsproxy.config.files import rules_file
from natsproxy.units import format_duration

_NAMES = click.argument(
    "names",
    nargs=-1,
    required=True,
    shell_complete=names("rules", lambda answer: [row["rule"]["name"] for row in answer["rules"]]),
)


@click.group(cls=ListByDefault)
def rules() -> None:
    """Show and change the rules of a running proxy.

    \b
    natsproxy ctl rules
    natsproxy ctl rules disable lose-orders
    """


@rules.command(name="list")
@admin_options
@json_option
def list_(client: AdminClient, as_json: bool) -> None:
    """List the rules in the order in which they act.

    \b
    natsproxy ctl rules list --json
    """
    _show(client.ask("GET", "rules"), as_json)


@rules.command(name="set")
@admin_options
@json_option
@click.argument("file", type=FilePath())
@click.option(
    "--revision", metavar="TEXT", help="Fail if the rules have changed since this revision, from list --json."
)
def set_(client: AdminClient, as_json: bool, file: Path, revision: str | None) -> None:
    """Replace all rules by those of a file.

    \b
    natsproxy ctl rules set faults.toml
    """
    tables = [{"rule": rule.as_json()} for rule in rules_file(file)]
    match = "*" if revision is None else f'"{revision}"'
    _show(client.ask("PUT", "rules", {"rules": tables}, headers={"If-Match": match}), as_json)


@rules.command()
@admin_options
@_NAMES
def enable(client: AdminClient, names: tuple[str, ...]) -> None:
    """Enable disabled rules.

    \b
    natsproxy ctl rules enable lose-orders
    """
    for name in names:
        client.ask("PATCH", _path(name), {"enabled": True})


@rules.command()
@admin_options
@_NAMES
def disable(client: AdminClient, names: tuple[str, ...]) -> None:
    """Disable rules without removing them.

    \b
    natsproxy ctl rules disable lose-orders slow-orders
    """
    for name in names:
        client.ask("PATCH", _path(name), {"enabled": False})


@rules.command()
@admin_options
@_NAMES
def remove(client: AdminClient, names: tuple[str, ...]) -> None:
    """Remove rules; reset restores those of the file.

    \b
    natsproxy ctl rules remove latency-1
    """
    for name in names:
        client.ask("DELETE", _path(name))


@rules.command()
@admin_options
@json_option
def reset(client: AdminClient, as_json: bool) -> None:
    """Restore the rules of the file, and remove all faults.

    \b
    natsproxy ctl rules reset
    """
    _show(client.ask("POST", "reset"), as_json)


def _path(name: str) -> str:
    return f"rules/{quote(name, safe='')}"


def _show(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer))
        return
    rows = [
        (
            row["rule"]["name"],
            row["rule"]["kind"],
            "yes" if row["enabled"] else "no",
            row["origin"],
            row["firings"],
            None if row["ends_in_ns"] is None else format_duration(row["ends_in_ns"] // 10**9 * 10**9),
        )
        for row in answer["rules"]
    ]
    show_table(("rule", "kind", "enabled", "origin", "firings", "ends in"), rows)
    if answer["removed"]:
        click.echo(f"removed: {', '.join(answer['removed'])}")
