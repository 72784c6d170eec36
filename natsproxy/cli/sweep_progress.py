"""The progress of a sweep on stderr: a table on a terminal, else a line where something has changed."""

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

from natsproxy.config.endpoints import HttpListener
from natsproxy.printable import printable
from natsproxy.sweep.kept_sweep import KeptSweep, Outcome
from natsproxy.sweep.live_page import live_page
from natsproxy.sweep.sweeping import Sweep, title
from natsproxy.sweep.values import Verdict

_REFRESH: Final = 0.25  # seconds between two updates of the table
_LINES: Final = 10.0  # seconds between two lines, at least
_PROBLEMS: Final = 3  # reasons why trials could not be run
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


async def showing(kept: KeptSweep, quiet: bool, page: HttpListener | None = None) -> None:
    """Run a sweep, and show how far it is.  page: where a browser sees it, too."""
    if page is None:
        await _showing(kept, quiet)
        return

    def say(text: str) -> None:
        click.echo(printable(text), err=True)

    async with live_page(kept.folder, page, say) as url:
        say(f"page: {url}")
        await _showing(kept, quiet)


async def _showing(kept: KeptSweep, quiet: bool) -> None:
    console, sweep = Console(stderr=True), kept.sweep
    if quiet:
        await kept.run()
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            await _beside(kept, _REFRESH, lambda: live.update(_table(sweep), refresh=True))
    else:
        await _beside(kept, _LINES, Lines(sweep).show)


async def _beside(kept: KeptSweep, every: float, show: Callable[[], None]) -> None:
    async def repeat() -> None:
        while True:
            show()
            await trio.sleep(every)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeat)
        await kept.run()
        nursery.cancel_scope.cancel()


def counted(sweep: Sweep) -> Counter[Verdict]:
    """Return the number of trials by verdict."""
    return Counter(one.judgement.verdict for one in sweep.judged)


def show_findings(outcome: Outcome) -> None:
    """Print the findings, remarks, the counts by verdict, what was not tried, and where the report is."""
    for line in outcome.result.differs:
        click.echo(printable(f"left out: {line}"), err=True)
    for one in outcome.findings:
        same, runs = one.rate
        sure = "" if one.least.confirmed else ", not confirmed"
        known = "" if one in outcome.new else ", accepted"
        colour = COLOURS[one.cause.verdict]
        click.echo(
            f"{click.style(one.title, fg=colour)}: {printable(one.sentence)} ({same} of {runs}{sure}{known})"
        )
    for remark in outcome.result.remarks():
        click.echo(f"remark: {remark.sentence}", err=True)
    for name in outcome.gone:
        click.echo(printable(f"accepted, and not found: {name}"), err=True)
    for problem, count in outcome.result.problems.most_common(_PROBLEMS):
        click.echo(printable(f"could not run: {count} of the trials: {problem}"), err=True)
    click.echo(outcome.counts(), err=True)
    if outcome.unwritten:
        click.echo(printable(f"the report could not be written: {outcome.unwritten}"), err=True)
        return
    if outcome.new:
        again = outcome.result.again_for(outcome.new[0].number)
        click.echo(printable(f"again: {again}", keep="\n"), err=True)
    click.echo(printable(f"report: {outcome.page}"), err=True)


class Lines:
    """The lines of a sweep where no terminal shows them."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._said = ""

    def show(self) -> None:
        """Print how far it is, where something has changed since the last line."""
        sweep = self._sweep
        said = "; ".join(filter(None, (_tried(sweep), _waits_for(sweep))))
        if said != self._said:
            self._said = said
            click.echo(printable(said + _left(sweep)), err=True)


def _tried(sweep: Sweep) -> str:
    if sweep.baseline is None:
        return "running without a fault"
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in counted(sweep).most_common())
    return f"{len(sweep.judged)} of {len(sweep.trials)} tried: {counts or 'none has ended yet'}"


def _waits_for(sweep: Sweep) -> str:
    """Return what is repeated now, the first by its name; "" for nothing."""
    if not sweep.repeated:
        return ""
    first, *others = sweep.repeated
    more = f", and {len(others)} more" if others else ""
    return f"confirming: {first.judgement.verdict.value} by {title(first.trial)}{more}"


def _left(sweep: Sweep) -> str:
    left = sweep.seconds_left()
    if left is None:
        return ""
    return f" ({left:.0f} s left)" if left else " (no new trial: the time is over)"


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
    for one in sweep.repeated:
        table.add_row(Text("confirming", "dim"), _dim(title(one.trial)))
    for name in list(sweep.running)[:_RUNNING]:
        table.add_row(Text("running", "dim"), _dim(name))
    return table


def _dim(name: str) -> Text:
    return Text(printable(name), "dim", overflow="ellipsis", no_wrap=True)
