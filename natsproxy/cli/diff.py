"""`natsproxy capture diff`: what differs between two captures, per subject template."""

from __future__ import annotations

import json
from pathlib import Path

import click

from natsproxy.cli.paths import FilePath
from natsproxy.cli.table import show_table
from natsproxy.errors import Exit
from natsproxy.printable import printable
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.normalize import parse_ignore
from natsproxy.replay.diff.report import Report, Row, Sample, Tally


@click.command()
@click.argument("recorded", type=FilePath())
@click.argument("observed", type=FilePath())
@click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="WHAT",
    help="json:/member, header:Name or subject:pattern; may be given often.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--all", "everything", is_flag=True, help="Show subjects without differences too.")
def diff(recorded: Path, observed: Path, ignored: tuple[str, ...], as_json: bool, everything: bool) -> None:
    """Compare two captures: who said what, by subject template.

    Inboxes, nuids, time stamps and order do not count.  Exit code: 0 the same, 1 different, 2 could not run.

    \b
    natsproxy capture diff before.ncap after.ncap
    natsproxy capture diff before.ncap after.ncap --ignore json:/ts --json
    """
    report = compare(recorded, observed, parse_ignore(ignored))
    show(report, as_json=as_json, everything=everything)
    raise SystemExit(Exit.OK if report.same else Exit.FOUND_WRONG)


def show(report: Report, *, as_json: bool, everything: bool = False) -> None:
    """Print a report, as JSON or as a table for a person."""
    if as_json:
        click.echo(json.dumps(report.facts()))
        return
    rows = [row for row in report.rows if everything or not row.same]
    differing = sum(not row.same for row in report.rows)
    if rows:
        _table(rows)
    for row in rows:
        if row.sample is not None:
            click.echo(f"\n{printable(row.group)}: {_what(row.sample)}")
            click.echo(f"  recorded  {printable(row.sample.recorded) or 'nothing'}")
            click.echo(f"  observed  {printable(row.sample.observed) or 'nothing'}")
    for side, count in zip(("recorded", "observed"), report.gaps, strict=True):
        if count:
            click.echo(f"\n{side}: {count} gaps; what was not recorded there is not compared")
    if differing:
        click.echo(f"\n{differing} of {len(report.rows)} subjects differ")
    else:
        click.echo(f"the same: {len(report.rows)} subjects compared")


def _what(sample: Sample) -> str:
    if sample.field != "presence":
        return f"{sample.field} differs"
    return "only recorded" if sample.recorded else "only observed"


def _table(rows: list[Row]) -> None:
    heads = (
        "subject",
        "subs",
        "sent",
        "received",
        "replies",
        "errors",
        "statuses",
        "p50 ms",
        "p99 ms",
        "-/+",
    )
    cells = list(map(_cells, rows))
    told = [place for place in range(len(heads)) if any(row[place] not in ("", "0") for row in cells)]
    show_table([heads[place] for place in told], [[row[place] for place in told] for row in cells])


def _cells(row: Row) -> tuple[str, ...]:
    a, b = row.recorded, row.observed
    return (
        row.group,
        _pair(a.subscribed, b.subscribed),
        _pair(a.sent, b.sent),
        _pair(a.received, b.received),
        _pair(a.replies, b.replies),
        _pair(a.errors, b.errors),
        _statuses(a, b),
        _pair(_ms(a, 0.5), _ms(b, 0.5)),
        _pair(_ms(a, 0.99), _ms(b, 0.99)),
        "" if row.same else f"-{row.missing} +{row.added}",
    )


def _pair(ours: object, theirs: object) -> str:
    return str(ours) if ours == theirs else f"{_or_dash(ours)}→{_or_dash(theirs)}"


def _or_dash(value: object) -> object:
    return "-" if value == "" else value


def _statuses(ours: Tally, theirs: Tally) -> str:
    names = sorted({_code(name) for name in (*ours.statuses, *theirs.statuses)})
    return ", ".join(f"{name}: {_pair(_count(ours, name), _count(theirs, name))}" for name in names)


def _count(tally: Tally, code: str) -> int:
    return sum(count for name, count in tally.statuses.items() if _code(name) == code)


def _code(name: str) -> str:
    return name[:3] if name[:3].isdigit() else name


def _ms(tally: Tally, share: float) -> str:
    value = tally.percentile(share)
    return "" if value is None else f"{value / 1e6:.1f}"
