"""The progress of a sweep on stderr: a table that changes on a terminal, else a line now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import click
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from natsproxy.printable import printable
from natsproxy.sweep.kept_sweep import Outcome
from natsproxy.sweep.sweeping import Sweep
from natsproxy.sweep.values import Verdict

_REFRESH: Final = 0.25  # seconds between two updates of the table
_LINES: Final = 10.0  # seconds between two lines
_RUNNING: Final = 6  # runs that are named
COLOURS: Final = {
    Verdict.PASSED: "green",
    Verdict.FAILED_LOUDLY: "cyan",
    Verdict.WRONG: "red",
    Verdict.HUNG: "red",
    Verdict.DEAF: "red",
    Verdict.FLAKY: "yellow",
    Verdict.NOT_REACHED: "dim",
}


async def showing(sweep: Sweep, quiet: bool) -> None:
    """Run a sweep, and show how far it is."""
    console = Console(stderr=True)
    if quiet:
        await sweep.run()
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            await _beside(sweep, _REFRESH, lambda: live.update(_table(sweep), refresh=True))
    else:
        await _beside(sweep, _LINES, lambda: click.echo(printable(_line(sweep)), err=True))


async def _beside(sweep: Sweep, every: float, show: Callable[[], None]) -> None:
    async def repeat() -> None:
        while True:
            show()
            await trio.sleep(every)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeat)
        await sweep.run()
        nursery.cancel_scope.cancel()


def counted(sweep: Sweep) -> Counter[Verdict]:
    """Return the number of trials by verdict."""
    return Counter(one.judgement.verdict for one in sweep.judged)


def show_findings(outcome: Outcome) -> None:
    """Print the findings, the counts by verdict, what was not tried, and where the report is."""
    for line in outcome.result.differs:
        click.echo(printable(f"left out: {line}"), err=True)
    for one in outcome.findings:
        same, runs = one.rate
        known = "" if one in outcome.new else ", accepted"
        colour = COLOURS[one.cause.verdict]
        click.echo(
            f"{click.style(one.title, fg=colour)}: {printable(one.sentence)} ({same} of {runs}{known})"
        )
    for name in outcome.gone:
        click.echo(printable(f"accepted, and not found: {name}"), err=True)
    click.echo(outcome.counts(), err=True)
    click.echo(printable(f"report: {outcome.page}"), err=True)


def _line(sweep: Sweep) -> str:
    if sweep.baseline is None:
        return "running without a fault"
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in counted(sweep).most_common())
    return f"{len(sweep.judged)} of {len(sweep.trials)} tried{_left(sweep)}: {counts or 'none has ended yet'}"


def _left(sweep: Sweep) -> str:
    left = sweep.seconds_left()
    return "" if left is None else f", {left:.0f} s left"


def _table(sweep: Sweep) -> Table:
    table = Table.grid(padding=(0, 2))
    if sweep.baseline is None:
        table.add_row("running without a fault", ", ".join(sweep.running))
        return table
    table.add_row("tried", f"{len(sweep.judged)} of {len(sweep.trials)}{_left(sweep)}")
    counts = counted(sweep)
    for verdict in Verdict:
        if counts[verdict]:
            table.add_row(Text(verdict.value, COLOURS[verdict]), str(counts[verdict]))
    for name in list(sweep.running)[:_RUNNING]:
        table.add_row(Text("running", "dim"), Text(printable(name), "dim", overflow="ellipsis", no_wrap=True))
    return table
