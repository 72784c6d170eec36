"""`natsproxy rules cookbook`: faults and policies that people ask for, as rules files."""

from __future__ import annotations

import difflib
import json

import click

from natsproxy.cli.exits import CouldNotRun
from natsproxy.rules.cookbook import COOKBOOK


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in COOKBOOK if name.startswith(incomplete)]


@click.command()
@click.argument("name", required=False, shell_complete=_complete)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each.")
def cookbook(name: str | None, as_json: bool) -> None:
    """List faults and policies that people ask for; with a NAME print its rules file.

    \b
    natsproxy rules cookbook
    natsproxy rules cookbook lost-publish-ack > faults.toml
    natsproxy rules cookbook keep-streams > policy.toml
    """
    if name is not None and name not in COOKBOOK:
        near = difflib.get_close_matches(name, COOKBOOK, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COOKBOOK)}"
        raise CouldNotRun(f"there is no recipe {name!r}; {hint}")
    recipes = COOKBOOK.values() if name is None else [COOKBOOK[name]]
    if as_json:
        for recipe in recipes:
            click.echo(json.dumps(recipe._asdict()))
    elif name is not None:
        click.echo(COOKBOOK[name].text, nl=False)
    else:
        show_cookbook()


def show_cookbook() -> None:
    """Print the names of all recipes, and what a client sees of each."""
    for recipe in COOKBOOK.values():
        click.echo(f"{recipe.name}: {recipe.title}\n    {recipe.sees}")
