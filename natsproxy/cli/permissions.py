"""`natsproxy permissions`: the smallest permissions that the traffic of captures needs."""

from __future__ import annotations

from pathlib import Path

import click

from natsproxy.cli.paths import FilePath
from natsproxy.permissions.formats import FORMATS
from natsproxy.permissions.needs import needs_of
from natsproxy.permissions.templates import DISTINCT, WORDS
from natsproxy.permissions.uses import By


@click.command()
@click.argument("captures", nargs=-1, required=True, type=FilePath())
@click.option(
    "--by",
    type=click.Choice([str(one) for one in By]),
    default=str(By.USER),
    show_default=True,
    help="One block for each user, client name or account; a client without it goes by its name.",
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="nats", show_default=True)
@click.option(
    "--distinct",
    type=click.IntRange(2),
    default=DISTINCT,
    show_default=True,
    help="Values from which on a number or an id becomes *.",
)
@click.option(
    "--words",
    type=click.IntRange(2),
    default=WORDS,
    show_default=True,
    help="Values from which on a word becomes *.",
)
def permissions(captures: tuple[Path, ...], by: str, form: str, distinct: int, words: int) -> None:
    """Write the smallest permissions that the traffic of captures needs.

    Each line has its evidence.  What was never used is left out; calls that a client library makes too
    rarely to be in a recording are listed as choices, with their reasons.
    Exit code: 0 done, 2 could not run.

    \b
    natsproxy permissions traffic.ncap
    natsproxy permissions monday.ncap tuesday.ncap --by name --format nsc
    natsproxy permissions traffic.ncap --format rule > rules.toml
    """
    needs = needs_of(captures, By(by), distinct=distinct, words=words)
    click.echo(FORMATS[form](needs, By(by)), nl=False)
