"""`natsproxy ctl connections`: the connections of a running proxy."""

from __future__ import annotations

import json
from typing import Any

import click

from natsproxy.cli.admin_client import AdminClient, admin_options, json_option, names
from natsproxy.cli.list_by_default import ListByDefault
from natsproxy.cli.table import show_table

_PAGE = 1000  # connections in one answer
_CONNS = click.argument(
    "conns",
    nargs=-1,
    required=True,
    type=click.IntRange(1),
    metavar="CONN...",
    shell_complete=names("connections", lambda answer: [row["conn"] for row in answer["connections"]]),
)


@click.group(cls=ListByDefault)
def connections() -> None:
    """Show and change the connections of a running proxy.

    \b
    natsproxy ctl connections
    natsproxy ctl connections suspend 3
    """


@connections.command(name="list")
@admin_options
@json_option
@click.option("--name", metavar="PATTERN", help="Only clients of this name (*, ?).")
@click.option("--user", metavar="PATTERN", help="Only this user (*, ?).")
def list_(client: AdminClient, as_json: bool, name: str | None, user: str | None) -> None:
    """List the open connections.

    \b
    natsproxy ctl connections list --name 'svc-*'
    """
    rows: list[dict[str, Any]] = []
    while True:
        query = {"name": name, "user": user, "limit": _PAGE, "offset": len(rows)}
        page = client.ask("GET", "connections", query=query)
        rows += page["connections"]
        if not page["connections"] or len(rows) >= page["total"]:
            break
    if as_json:
        click.echo(json.dumps(rows))
        return
    show_table(
        ("conn", "client", "name", "user", "lang", "subs", "from client", "to client", "state"),
        [
            (
                row["conn"],
                row["client"],
                row["name"],
                row["user"],
                f"{row['lang']} {row['version']}".strip(),
                row["subscriptions"],
                row["counts"]["c2s_frames"],
                row["counts"]["s2c_frames_out"],
                "suspended" if row["suspended"] else "paused" if row["paused"] else row["phase"],
            )
            for row in rows
        ],
    )


@connections.command()
@admin_options
@_CONNS
@click.option("--error", metavar="TEXT", help="Send this -ERR first.")
@click.option("--reset", is_flag=True, help="Close with RST.")
@click.option("--reason", metavar="TEXT", help="Reason for the log.")
def close(
    client: AdminClient, conns: tuple[int, ...], error: str | None, reset: bool, reason: str | None
) -> None:
    """Close connections; clients reconnect.

    \b
    natsproxy ctl connections close 3
    natsproxy ctl connections close 3 --error 'Authorization Violation'
    """
    for conn in conns:
        query = {"error": error, "reset": reset or None, "reason": reason}
        client.ask("DELETE", f"connections/{conn}", query=query)


@connections.command()
@admin_options
@_CONNS
def suspend(client: AdminClient, conns: tuple[int, ...]) -> None:
    """Drop the messages of connections and keep them open.

    PINGs are answered, and other frames (SUB, UNSUB) pass.

    \b
    natsproxy ctl connections suspend 3
    """
    for conn in conns:
        client.ask("PATCH", f"connections/{conn}", {"suspended": True})


@connections.command()
@admin_options
@_CONNS
@click.option("--for", "lasts", metavar="DURATION", help="Resume after this time; default: wait for resume.")
def pause(client: AdminClient, conns: tuple[int, ...], lasts: str | None) -> None:
    """Stop reading from connections and their servers.

    \b
    natsproxy ctl connections pause 3 --for 10s
    """
    for conn in conns:
        client.ask("PATCH", f"connections/{conn}", {"paused": lasts or True})


@connections.command()
@admin_options
@_CONNS
def resume(client: AdminClient, conns: tuple[int, ...]) -> None:
    """End suspension and pause.

    \b
    natsproxy ctl connections resume 3
    """
    for conn in conns:
        client.ask("PATCH", f"connections/{conn}", {"suspended": False, "paused": False})
