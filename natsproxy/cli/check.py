"""`natsproxy check`: statements about the traffic of captures, each with the frames that prove it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from natsproxy.check.checker import CHECKS, check_captures
from natsproxy.check.statement import ProofFrame, Statement
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.errors import Exit
from natsproxy.printable import printable


def _list_checks(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        width = max(map(len, CHECKS))
        for name, row in CHECKS.items():
            click.echo(f"{name:{width}}  {row.line}")
        ctx.exit()


@click.command()
@click.argument("captures", nargs=-1, required=True, type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--only", multiple=True, metavar="NAME", type=click.Choice(list(CHECKS)), help="One check; repeatable."
)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_checks, help="List the checks."
)
def check(captures: tuple[Path, ...], as_json: bool, only: tuple[str, ...]) -> None:
    """Find what went wrong in the traffic of captures.

    Lost and repeated messages, requests without answer, clients that take nothing: each finding has the
    frames that prove it.  Where a recording is too partial, a check says that it cannot say.
    Exit code: 0 nothing found, 1 found, 2 could not run.

    \b
    natsproxy check traffic.ncap
    natsproxy check traffic.ncap --only deaf_client --json
    natsproxy check before-the-proxy.ncap behind-it.ncap
    """
    statements = check_captures(captures, only, tell_lost)
    found = sum(statement.found for statement in statements)
    if as_json:
        facts = [statement.facts() for statement in statements]
        click.echo(json.dumps({"found": found, "statements": facts}))
    else:
        for statement in statements:
            _show(statement, several=len(captures) > 1)
        ran = len(set(only)) or len(CHECKS)
        click.echo(f"{found or 'nothing'} found by {ran} {'check' if ran == 1 else 'checks'}")
    raise SystemExit(Exit.FOUND_WRONG if found else Exit.OK)


def _show(statement: Statement, *, several: bool) -> None:
    verdict = click.style(statement.verdict, fg="red" if statement.found else "yellow")
    click.echo(f"{verdict}  {click.style(statement.check, bold=True)}")
    click.echo(printable(f"  {statement.sentence}"))
    for frame in statement.frames:
        click.echo(printable(f"    {_line(frame, several=several)}"))


def _line(frame: ProofFrame, *, several: bool) -> str:
    way = "→" if frame.direction == "c2s" else "←"
    number = "" if frame.ordinal is None else f" #{frame.ordinal}"
    rule = f"  [{frame.rule}]" if frame.rule else ""
    where = f"{frame.capture}  " if several else ""
    return f"{where}{frame.t / 1e9:.6f} s  {frame.connection} {way}{number}  {frame.text}{rule}"
