"""`natsproxy rules promote`: rules in shadow put in force, and what that would have broken."""

from __future__ import annotations

import json
from pathlib import Path

import click

from natsproxy.cli.exits import CouldNotRun
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.cli.rules_file import rules_text
from natsproxy.config.files import rules_in
from natsproxy.errors import Exit
from natsproxy.printable import printable
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.trial.promotion import broken, enforced, shadowed, text_enforced
from natsproxy.trial.rehearsal import Rehearsal
from natsproxy.trial.report import Key, Report, Row, row_facts


@click.command()
@click.argument("file", type=FilePath())
@click.argument("captures", nargs=-1, required=True, type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
def promote(file: Path, captures: tuple[Path, ...], as_json: bool, seed: int) -> None:
    """Print a rules file without shadow, and what that would have broken on recordings.

    The recordings are those of the time of shadow, or any others.  A comment above the rules has each rule,
    frames and client that would have been denied, and what would not have come after that.
    Exit code: 0 nothing would have broken, 1 something would, 2 could not run.

    \b
    natsproxy rules promote shadow.toml monday.ncap > rules.toml
    natsproxy rules promote shadow.toml traffic/ --json
    """
    text, source = rules_text(file)
    rules = RuleChain(rules_in(text, source)).rules
    names = shadowed(rules)
    if not names:
        raise CouldNotRun(f'{source}: no rule is in shadow (mode = "shadow")')
    chain = RuleChain(enforced(rules))
    rehearsal, report = Rehearsal(chain.rules, seed=seed), Report(chain.rules, ())
    for capture in captures:
        for one in rehearsal.run(capture, tell_lost):
            report.add(one)
    found, limits = broken(report, names), report.limits(rehearsal.missing)
    if as_json:
        rows = [row_facts(key, row) for key, row in found]
        facts = {"frames": report.frames, "broken": rows, "limits": limits, "rules": text_enforced(text)}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"# {report.frames} frames: {_sum(found)}")
        for key, row in found:
            click.echo(printable(f"# {_line(key, row)}"))
        for limit in limits:
            click.echo(f"# Note: {limit}")
        click.echo(text_enforced(text), nl=False)
    raise SystemExit(Exit.FOUND_WRONG if found else Exit.OK)


def _sum(found: list[tuple[Key, Row]]) -> str:
    count = sum(row.count for _, row in found)
    return f"these rules would have broken {count or 'nothing'}{':' if count else ''}"


def _line(key: Key, row: Row) -> str:
    times = f"{row.first.t / 1e9:.6f} s" + (f" to {row.last.t / 1e9:.6f} s" if row.count > 1 else "")
    return f"{key.rule}: {key.verdict}: {row.count} {key.what} of {key.client}, {times}"
