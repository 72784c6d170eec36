"""`natsproxy ctl`: a running proxy, steered by its admin API."""

from __future__ import annotations

import json

import click

from natsproxy.cli.admin_client import AdminClient, admin_options, json_option
from natsproxy.cli.ctl_captures import capture
from natsproxy.cli.ctl_connections import connections
from natsproxy.cli.ctl_fault import fault
from natsproxy.cli.ctl_rules import rules
from natsproxy.cli.exits import CouldNotRun, FoundWrong
from natsproxy.errors import ConfigError
from natsproxy.printable import printable


@click.group()
def ctl() -> None:
    """Steer a running proxy by its admin API.

    The proxy must run with --admin.  NATSPROXY_ADMIN_URL gives the URL, or --admin URL after a command.

    \b
    export NATSPROXY_ADMIN_URL=http://127.0.0.1:8223
    natsproxy ctl health
    natsproxy ctl fault latency --subject 'orders.>' --delay 200ms --for 30s
    natsproxy ctl rules list
    """


@ctl.command()
@admin_options
@json_option
def health(client: AdminClient, as_json: bool) -> None:
    """Check whether the proxy serves clients.

    Exit code: 0 yes, 1 no, 2 nobody answers.

    \b
    natsproxy ctl health --admin unix:/run/natsproxy/admin
    """
    state = client.ask("GET", "/v1/health", accept=(503,))
    if as_json:
        click.echo(json.dumps(state))
    if not state["ready"]:
        raise FoundWrong(f"not ready: {state['reason']}")
    if not as_json:
        click.echo("ready")


@ctl.command()
@admin_options
@json_option
@click.option("--rule", metavar="NAME", help="Only firings of this rule.")
@click.option("--follow", is_flag=True, help="Then print new firings as they happen.")
def firings(client: AdminClient, as_json: bool, rule: str | None, follow: bool) -> None:
    """Show the latest firings of rules; with --follow, new ones too.

    \b
    natsproxy ctl firings --follow
    natsproxy ctl firings --rule latency-1 --json
    """
    latest = client.ask("GET", "firings", query={"rule": rule})
    for one in latest["firings"]:
        _show(one, as_json)
    if not follow:
        return
    for name, data in client.events("firings/stream", {"rule": rule}, after=latest["total"]):
        if name == "firing":
            _show(data, as_json)
        else:
            click.echo(f"{data['events']} firings were too many to show", err=True)


@ctl.command()
@admin_options
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
def page(client: AdminClient, opens: bool) -> None:
    """Print a link to the page of the proxy: live frames, connections, rules, captures.

    The link is good once, for a minute; the browser that opens it needs no token.

    \b
    natsproxy ctl page
    natsproxy ctl page --open
    """
    if client.url.startswith("unix:"):
        raise ConfigError("no browser opens a unix socket: the page needs --admin HOST:PORT")
    link = client.url.rstrip("/") + client.ask("POST", "/v1/page-links")["path"]
    click.echo(link)
    if opens and click.launch(link):
        raise CouldNotRun("no browser could be started: open the link by hand")


def _show(one: dict[str, object], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(one))
        return
    more = f"  x{one['count']}" if one["count"] != 1 else ""
    frame = printable(f"{one['op']} {one['subject']}".strip())
    who = "".join(f" {printable(str(one[name]))}" for name in ("name", "user", "client") if one[name])
    what = f"{one['rule']}: {one['action']}  {frame}{more}"
    click.echo(f"{one['time']}  #{one['conn']}{who}  {one['direction']}  {what}")


for command in (rules, connections, fault, capture):
    ctl.add_command(command)
