"""`natsproxy top`: the connections of a running proxy with their rates, as nats-top for a server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from natsproxy.cli.admin_client import AdminClient, AdminError, admin_options
from natsproxy.cli.frame_lines import terminal_width
from natsproxy.cli.params import Seconds
from natsproxy.cli.top_keys import HELP, LEAST_DELAY, MOST, ORDERS, RATE, View, keyboard
from natsproxy.cli.top_rates import busiest, with_rates
from natsproxy.cli.top_screen import Line, help_lines, screen
from natsproxy.printable import wants_plain

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions

_SUBJECTS: Final = 20  # of each connection


class _Source:
    """The answers of the API, with rates from the second one on."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._before: dict[str, Any] | None = None

    def read(self, view: View, *, early: bool = False) -> dict[str, Any]:
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
    help=f"The order of connections: {', '.join(ORDERS)}. rate: messages a second, of the 1,000 used last.",
)
@click.option("--number", "-n", type=click.IntRange(1, MOST), default=MOST, help="The most connections.")
@click.option("--delay", "-d", type=Seconds(), default="1s", show_default=True, help="Between two updates.")
@click.option("--subjects", "-s", is_flag=True, help="Their subjects too.")
@click.option("--once", "-b", is_flag=True, help="Print once, for scripts; so it is in a pipe.")
@click.option("--json", "as_json", is_flag=True, help="Print once, as JSON.")
def top(
    client: AdminClient, order: str, number: int, delay: float, subjects: bool, once: bool, as_json: bool
) -> None:
    """Show the connections of a running proxy, the busiest first.

    The proxy was started with natsproxy run --admin; --admin URL or NATSPROXY_ADMIN_URL names it.  Keys: o
    order, n number, d delay, s subjects, ? help, q quit.  Rates are those between two updates.

    \b
    natsproxy top --admin http://127.0.0.1:8223
    natsproxy top --once --order msgs_to -n 10
    """
    if delay < LEAST_DELAY:
        raise click.BadParameter("must be at least 100ms", param_hint="--delay")
    view, source = View(order, number, delay, subjects), _Source(client)
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


def _show(view: View, source: _Source) -> None:
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


def _lines(view: View, found: dict[str, Any], failure: str, size: ConsoleDimensions) -> list[Line]:
    if view.help:
        return [*help_lines(HELP, size.width)][: size.height]
    note = view.line or failure or "? for help"
    return screen(found["proxy"], found["traffic"], size.width, size.height, note)
