"""`natsproxy capture diff`: the differences between two captures, per subject template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from natsproxy.capture.read.reader import open_capture
from natsproxy.cli.match_options import ignored_subjects, match_options
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.cli.table import show_table
from natsproxy.errors import Exit
from natsproxy.printable import printable
from natsproxy.replay.conversation.match_options import Given, MatchOptions, combine
from natsproxy.replay.conversation.steps import stored_options
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.report import DiffReport, DiffRow, DiffSample, Tally

_LEARNED: Final = 20  # learned values that are shown
_COLOURS: Final = {"-": "red", "+": "green"}


@click.command()
@click.argument("recorded", type=FilePath())
@click.argument("observed", type=FilePath())
@match_options
@ignored_subjects
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--all", "everything", is_flag=True, help="Show subjects without differences too.")
def diff(
    recorded: Path,
    observed: Path,
    options: Given,
    subjects: tuple[bytes, ...],
    as_json: bool,
    everything: bool,
) -> None:
    """Compare the messages of two captures, by subject template.

    Frames are compared as a cassette compares them: identifiers and times that differ from run to run are
    learned, polls may come more or less often, and the options are the same (those of RECORDED count, too).
    Frames may come in any order.  Of the first frames that differ, the lines are shown.
    Exit code: 0 the same, 1 different, 2 could not run.

    \b
    natsproxy capture diff before.ncap after.ncap
    natsproxy capture diff before.ncap after.ncap --ignore-json /ts --json
    """
    for path in (recorded, observed):
        if (text := open_capture(path, tell_lost).copies) is not None:
            tell_lost(text)
    counted = MatchOptions(**combine(stored_options(recorded), options))
    report = compare(recorded, observed, counted, subjects=subjects)
    show(report, as_json=as_json, everything=everything)
    raise SystemExit(Exit.OK if report.same else Exit.FOUND_WRONG)


def show(report: DiffReport, *, as_json: bool, everything: bool = False) -> None:
    """Print a report, as JSON or as a table for a person."""
    if as_json:
        click.echo(json.dumps(report.facts()))
        return
    for line in report.learned[:_LEARNED]:
        click.echo(printable(f"learned: {line}"))
    if len(report.learned) > _LEARNED:
        click.echo(f"learned: {len(report.learned) - _LEARNED} more")
    rows = [row for row in report.rows if everything or not row.same]
    differing = sum(not row.same for row in report.rows)
    if rows:
        _table(rows)
    for row in rows:
        if row.sample is not None:
            click.echo(f"\n{printable(row.group)}: {_difference(row.sample)}")
            for line in row.sample.changed:
                click.echo(click.style(f"  {printable(line)}", fg=_COLOURS.get(line[:1])))
    for side, count in zip(("recorded", "observed"), report.gaps, strict=True):
        if count:
            click.echo(f"\n{side}: {count} gaps; frames that are missing there are not compared")
    if report.by_form:
        click.echo(
            "\nmany frames are far out of order: which of their identifiers are equal was not compared"
        )
    if differing:
        click.echo(f"\n{differing} of {len(report.rows)} subjects differ")
    else:
        click.echo(f"the same: {len(report.rows)} subjects compared")


def _difference(sample: DiffSample) -> str:
    if sample.field != "presence":
        return f"{sample.field} differs"
    return "only recorded" if sample.recorded else "only observed"


def _table(rows: list[DiffRow]) -> None:
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
    # A column without any value would only make the table wider.
    used = [column for column in range(len(heads)) if any(row[column] not in ("", "0") for row in cells)]
    show_table([heads[column] for column in used], [[row[column] for column in used] for row in cells])


def _cells(row: DiffRow) -> tuple[str, ...]:
    a, b = row.recorded, row.observed
    return (
        row.group,
        _pair(a.subscribed, b.subscribed),
        _pair(a.sent, b.sent),
        _pair(a.received, b.received),
        _pair(a.replies, b.replies),
        _pair(a.errors, b.errors),
        _statuses(a, b),
        _pair(_milliseconds(a, 0.5), _milliseconds(b, 0.5)),
        _pair(_milliseconds(a, 0.99), _milliseconds(b, 0.99)),
        "" if row.same else f"-{row.missing} +{row.added}",
    )


def _pair(recorded: object, observed: object) -> str:
    """Return one value where both are the same, else both with an arrow between."""
    return str(recorded) if recorded == observed else f"{_or_dash(recorded)}→{_or_dash(observed)}"


def _or_dash(value: object) -> object:
    return "-" if value == "" else value


def _statuses(recorded: Tally, observed: Tally) -> str:
    codes = sorted({_code(status) for status in (*recorded.statuses, *observed.statuses)})
    return ", ".join(f"{code}: {_pair(_count(recorded, code), _count(observed, code))}" for code in codes)


def _count(tally: Tally, code: str) -> int:
    return sum(count for status, count in tally.statuses.items() if _code(status) == code)


def _code(status: str) -> str:
    """Return the number of a status line ("503 No Responders"), or all of a text without one."""
    return status[:3] if status[:3].isdigit() else status


def _milliseconds(tally: Tally, share: float) -> str:
    value = tally.percentile(share)
    return "" if value is None else f"{value / 1e6:.1f}"
