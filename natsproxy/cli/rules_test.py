"""`natsproxy rules test`: the verdicts of a rules file on recorded traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.cli.rules_file import rules_text
from natsproxy.cli.table import show_table
from natsproxy.config.files import rules_in
from natsproxy.errors import Exit
from natsproxy.printable import printable
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load_expectations
from natsproxy.trial.rehearsal import JudgedFrame, Rehearsal
from natsproxy.trial.report import Report, frame_facts, what
from natsproxy.wire.ops import C2S

_HEADS = ("rule", "verdict", "frames", "count", "client", "first", "last")


@click.command()
@click.argument("file", type=FilePath())
@click.argument("captures", nargs=-1, required=True, type=FilePath())
@click.option("--frames", "each", is_flag=True, help="List each frame on which a rule acts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
def test(file: Path, captures: tuple[Path, ...], each: bool, as_json: bool, seed: int) -> None:
    """Try a rules file on recorded traffic, before it is loaded.

    The proxy's own engine decides on each recorded frame, connection by connection.  What an earlier verdict
    prevents (deliveries on a denied SUB, answers to a denied request) "would not come".  `[[expect]]` tables
    of the file say what must happen: the keys of a selector, and a verdict.
    Exit code: 0 all expectations are met, 1 one is not, 2 could not run.

    \b
    natsproxy rules test faults.toml traffic.ncap
    natsproxy rules test faults.toml monday.ncap tuesday/ --frames
    natsproxy rules test faults.toml traffic.ncap --json

    \b
    [[expect]]
    subject = "orders.>"
    client = { name = "billing*" }
    verdict = "pass"
    """
    text, source = rules_text(file)
    chain = RuleChain(rules_in(text, source))
    expectations = load_expectations(text, source=str(source))
    rehearsal = Rehearsal(chain.rules, expectations, seed)
    report = Report(chain.rules, expectations)
    listed: list[dict[str, Any]] = []
    for capture in captures:
        for one in rehearsal.run(capture, tell_lost):
            report.add(one)
            if each and one.rulings:
                if as_json:
                    listed.append(frame_facts(one))
                else:
                    click.echo(frame_line(one))
    limits = report.limits(rehearsal.missing)
    if as_json:
        facts = {**report.facts(), "limits": limits}
        click.echo(json.dumps({**facts, "listed": listed} if each else facts))
    else:
        _show(report, limits)
    raise SystemExit(Exit.OK if report.holds else Exit.FOUND_WRONG)


def _show(report: Report, limits: list[str]) -> None:
    if report.rows:
        show_table(
            _HEADS,
            (
                (*key[:3], row.count, key.client, _when(row.first), _when(row.last))
                for key, row in sorted(report.rows.items())
            ),
        )
    click.echo(f"{report.frames} frames, {report.passed} of them pass untouched")
    for text in limits:
        click.echo(f"Note: {text}")
    for outcome in report.outcomes:
        if not outcome.holds:
            click.echo(printable(f"Not met: {outcome.sentence()}"))
            for one in outcome.odd:
                click.echo(f"    {frame_line(one)}")
    if report.outcomes:
        met = sum(outcome.holds for outcome in report.outcomes)
        click.echo(f"{met} of {len(report.outcomes)} expectations met")


def frame_line(one: JudgedFrame) -> str:
    """Return a line about a frame: its time, its connection, and its verdicts."""
    way = "→" if one.direction == C2S else "←"
    number = "" if one.ordinal is None else f" #{one.ordinal}"
    subject = one.subject.decode("utf-8", "backslashreplace")
    text = what(one) if one.op is None else f"{one.op.label} {subject}".rstrip()
    verdicts = ", ".join(f"{ruling.verdict} by {ruling.rule}" for ruling in one.rulings) or "pass"
    return printable(f"{_when(one)}  {one.connection} {way}{number}  {one.client}  {text}  [{verdicts}]")


def _when(one: JudgedFrame) -> str:
    return f"{one.t / 1e9:.6f} s"
