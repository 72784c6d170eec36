"""`natsproxy tap`: the frames of a running proxy as they go, as `capture cat` shows those of a capture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any, Final

import click

from natsproxy.admin.live_frames import MOST, PAYLOAD
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, OpenRecord
from natsproxy.capture.listing.choice import Choice
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.listing.row import from_row
from natsproxy.cli.admin_client import AdminClient, AdminError, admin_options
from natsproxy.cli.filters import live_choices
from natsproxy.cli.frame_lines import FramePrinter, shown_frames, terminal_width
from natsproxy.errors import ConfigError
from natsproxy.wire.ops import ALL_OPS, Op

_SAID: Final = 5
"""Looks of the proxy, of which there are five a second, that one line about a sample is about."""


@click.command()
@admin_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each frame, as capture cat.")
@shown_frames
@live_choices
def tap(client: AdminClient, as_json: bool, payload: str, everything: bool, choice: Choice) -> None:
    """Print the frames that pass a running proxy, one per line, until Ctrl-C.

    The proxy must run with --admin; name its URL with --admin or NATSPROXY_ADMIN_URL.  Lines are those
    of capture cat; nothing is written to a disk, and the proxy selects the frames.  Busy traffic is
    sampled: standard error shows how much of it was looked at.

    \b
    natsproxy tap --admin http://127.0.0.1:8223
    natsproxy tap --subject 'orders.>' --exchange --payload whole
    natsproxy tap --role nak --client 'worker-*' --json
    """
    width = terminal_width()
    lines = FramePrinter(width, payload, raw=everything)
    quiet = not everything and choice.query.ops == ALL_OPS
    most = {"whole": PAYLOAD, "line": 4 * width, "none": 0}["whole" if as_json else payload]
    totals = _Totals()
    try:
        for data in _looks(client, query_of(choice, min(most, PAYLOAD))):
            totals.add(data)
            if as_json:
                for row in data["frames"]:
                    click.echo(json.dumps(row))
            else:
                for one in _found(client, data, choice):
                    if not (quiet and isinstance(one, Listed) and one.routine):
                        for line in lines.lines(one):
                            click.echo(line)
    except KeyboardInterrupt:
        totals.say()
        return
    totals.say()
    raise AdminError(f"{client.url}: the proxy has gone")


def query_of(choice: Choice, payload: int) -> dict[str, Any]:
    """Return the parameters of the API that ask for a choice of frames.  payload: the most bytes of each."""
    query = choice.query
    if query.conns.last_run > 1:
        raise ConfigError("--conn: a running proxy has one run of connections: give NUMBER alone")
    ops = [op.label for op in Op if query.ops >> op & 1]
    headers = [
        name.decode("utf-8", "replace") + ("" if glob is None else f": {glob}")
        for name, glob in choice.headers
    ]
    return {
        "subject": [subject.decode("utf-8", "replace") for subject in query.subjects],
        "op": ",".join(ops) if query.ops != ALL_OPS else None,
        "direction": None if query.direction is None else query.direction.label,
        "conn": sorted(query.conns.numbers(1)),
        "client": list(choice.clients),
        "role": ",".join(role.name for role in choice.roles) or None,
        "header": headers,
        "exchange": choice.exchange,
        "payload": payload,
        "limit": MOST,
    }


def _looks(client: AdminClient, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the data of each event.  It is said when the proxy has begun to send them."""
    for number, (_, data) in enumerate(client.events("frames/stream", query)):
        if not number:
            click.echo(f"looking at {client.url}", err=True)
        yield data


def _found(client: AdminClient, data: dict[str, Any], choice: Choice) -> Iterator[Listed | Event]:
    """Yield the frames of an event, and between them the connections that came and went, by time."""
    changes = (event for event in map(_event, data["changes"]) if choice.wants_event(event))
    try:
        frames = [from_row(row) for row in data["frames"]]
    except ValueError as error:
        raise AdminError(f"{client.url}: {error}") from None
    found: tuple[Iterable[Listed | Event], ...] = (frames, changes)
    yield from merge(*found, key=_wall)


def _wall(one: Listed | Event) -> int:
    return one.one.wall if isinstance(one, Listed) else one.wall


def _event(change: dict[str, Any]) -> Event:
    conn = ConnectionId(b"", 1, change["conn"])
    item: OpenRecord | CloseRecord
    if change["change"] == "opened":
        item = OpenRecord(conn.number, 0, {"client": change["address"], "upstream": change["server"]})
    else:
        item = CloseRecord(conn.number, 0, change["cause"], {"detail": change["detail"]})
    return Event(item, change["t_ns"], conn, change["client"])


class _Totals:
    """The frames that have passed, and those that were looked at, in all and since that was last said."""

    def __init__(self) -> None:
        self._passed = self._seen = self._chosen = 0
        self._new_passed = self._new_seen = 0
        self._looks = _SAID

    def add(self, data: dict[str, Any]) -> None:
        """Add a look; say it if only a part of the traffic was looked at."""
        self._passed += data["total"]
        self._seen += data["seen"]
        self._chosen += len(data["frames"])
        self._new_passed += data["total"]
        self._new_seen += data["seen"]
        self._looks += 1
        passed, seen = self._new_passed, self._new_seen
        if self._looks < _SAID:
            return
        if seen < passed:
            part = f"1 in {passed / seen:.3g}" if seen else "none"
            told = f"sampled: {seen:,} of {passed:,} frames were looked at ({part})"
            click.echo(click.style(told, dim=True), err=True)
            self._looks = 0
        self._new_passed = self._new_seen = 0

    def say(self) -> None:
        """Say the totals."""
        told = f"{self._passed:,} frames passed, {self._seen:,} were looked at, {self._chosen:,} chosen"
        click.echo(told, err=True)
