"""`natsproxy top`: the connections of a running proxy with their rates, as nats-top for a server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from natsproxy.cli.admin_client import AdminClient, AdminError, admin_options
from natsproxy.cli.frame_lines import terminal_width
from natsproxy.cli.params import Seconds
from natsproxy.cli.top_keys import HELP, LEAST_DELAY, MOST, ORDERS, RATE, TopView, keyboard
from natsproxy.cli.top_screen import Line, Row, help_lines, screen
from natsproxy.printable import wants_plain
from natsproxy.units import SECOND

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions

_SUBJECTS: Final = 20  # of each connection
_RATED: Final = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")


def with_rates(before: dict[str, Any] | None, traffic: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of `traffic` with `rates` a second; None where they are not known.

    before: the answer before; None for none, and that of an earlier start says nothing.
    """
    if before is not None and before["started_ns"] != traffic["started_ns"]:
        before = None
    passed = 0 if before is None else traffic["clock_ns"] - before["clock_ns"]
    rows = {} if before is None else {row["conn"]: row for row in before["connections"]}

    def of_connection(row: Row) -> dict[str, float] | None:
        earlier = rows.get(row["conn"])
        if earlier is None and before is not None and row["since_ns"] >= before["time_ns"]:
            earlier = dict.fromkeys(_RATED, 0)  # it is new
        return _rates(earlier, row, passed, _RATED)

    connections = [{**row, "rates": of_connection(row)} for row in traffic["connections"]]
    rates = _rates(before, traffic, passed, (*_RATED, "firings"))
    return {**traffic, "rates": rates, "connections": connections}


def _rates(
    before: dict[str, Any] | None, after: dict[str, Any], passed: int, names: tuple[str, ...]
) -> dict[str, float] | None:
    if before is None or passed <= 0:
        return None
    return {name: round((after[name] - before[name]) * SECOND / passed, 3) for name in names}


def busiest(rows: list[Row], most: int) -> list[Row]:
    """Return the connections with the most messages a second, both ways."""

    def messages(row: Row) -> float:
        rates = row["rates"]
        return 0.0 if rates is None else -rates["in_msgs"] - rates["out_msgs"]

    return sorted(rows, key=messages)[:most]


class _Source:
    """The answers of the API, with rates from the second one on."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._before: dict[str, Any] | None = None

    def read(self, view: TopView, *, early: bool = False) -> dict[str, Any]:
        """Return the proxy and its traffic.  Raises AdminError.

        early: the next rates begin where these do.
        """
        by_rate = view.order == RATE
        query = {
            "sort": "last" if by_rate else view.order,
            "limit": MOST if by_rate else view.number,
            "subjects": _SUBJECTS if view.subjects else None,
        }
        proxy = self._client.ask("GET", "")
        answer = self._client.ask("GET", "traffic", query=query)
        traffic = with_rates(self._before, answer)
        if not early:
            self._before = answer
        if by_rate:
            traffic["connections"] = busiest(traffic["connections"], view.number)
        return {"proxy": proxy, "traffic": traffic}


@click.command()
@admin_options
@click.option(
    "--order",
    "-o",
    type=click.Choice(ORDERS),
    default=RATE,
    show_default=True,
    metavar="ORDER",
    help=f"Sort order: {', '.join(ORDERS)}. rate: messages a second, of the 1,000 used last.",
)
@click.option(
    "--number", "-n", type=click.IntRange(1, MOST), default=MOST, help="Maximum number of connections."
)
@click.option(
    "--delay", "-d", type=Seconds(), default="1s", show_default=True, help="Time between two updates."
)
@click.option("--subjects", "-s", is_flag=True, help="Show their subjects too.")
@click.option("--once", "-b", is_flag=True, help="Print once, for scripts; the default in a pipe.")
@click.option("--json", "as_json", is_flag=True, help="Print once, as JSON.")
def top(
    client: AdminClient, order: str, number: int, delay: float, subjects: bool, once: bool, as_json: bool
) -> None:
    """Show the connections of a running proxy, the busiest first.

    The proxy must run with --admin; name its URL with --admin or NATSPROXY_ADMIN_URL.  Keys: o order,
    n number, d delay, s subjects, ? help, q quit.  Rates are those between two updates.

    \b
    natsproxy top --admin http://127.0.0.1:8223
    natsproxy top --once --order msgs_to -n 10
    """
    if delay < LEAST_DELAY:
        raise click.BadParameter("must be at least 100ms", param_hint="--delay")
    view, source = TopView(order, number, delay, subjects), _Source(client)
    if once or as_json or wants_no_screen():
        source.read(view)
        time.sleep(delay)
        _print(source.read(view), as_json)
    else:
        _show(view, source)


def wants_no_screen() -> bool:
    """Tell whether standard output is no terminal, or one that cannot be written over."""
    from rich.console import Console

    console = Console()
    return not console.is_terminal or console.is_dumb_terminal


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
        return
    for line, _ in screen(found["proxy"], found["traffic"], terminal_width()):
        click.echo(line)


def _show(view: TopView, source: _Source) -> None:
    """Show the screen until the user quits; a proxy that has gone may come back."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, color_system=None if wants_plain() else "auto")
    found, failure = source.read(view), ""
    next_look = time.monotonic() + view.delay
    try:
        with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while not view.done:
                lines = _lines(view, found, failure, console.size)
                text = Text("\n", no_wrap=True, overflow="crop").join(Text(*line) for line in lines)
                live.update(text, refresh=True)
                pressed = keys(next_look - time.monotonic())
                view.press(pressed)
                if view.done or (pressed and view.asking):
                    continue
                try:
                    found, failure = source.read(view, early=bool(pressed)), ""
                except AdminError as error:
                    failure = str(error)
                if not pressed:
                    next_look = time.monotonic() + view.delay
    except KeyboardInterrupt:
        return


def _lines(view: TopView, found: dict[str, Any], failure: str, size: ConsoleDimensions) -> list[Line]:
    if view.help:
        return [*help_lines(HELP, size.width)][: size.height]
    note = view.line or failure or "? for help"
    return screen(found["proxy"], found["traffic"], size.width, size.height, note)
