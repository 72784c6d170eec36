"""`natsproxy capture cat`: the frames of a capture, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from natsproxy.capture.listing.choice import Choice, Chooser, listed
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.listing.row import json_line
from natsproxy.capture.read.reader import Follower, open_capture
from natsproxy.cli.filters import choices
from natsproxy.cli.frame_lines import FrameLines, terminal_width
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.wire.ops import ALL_OPS

_POLL: Final = 0.25  # seconds between two reads of a growing capture


@click.command()
@click.argument("path", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each frame.")
@click.option(
    "--payload",
    type=click.Choice(["line", "whole", "none"]),
    default="line",
    show_default=True,
    help="Its beginning, all of it (JSON by member, bytes as hex), or none of it.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Keep-alives and each INFO too; subjects as on the wire."
)
@choices
@click.option("--follow", "-f", is_flag=True, help="Continue as the capture grows.")
def cat(path: Path, as_json: bool, payload: str, everything: bool, choice: Choice, follow: bool) -> None:
    """Print the frames of a capture, one per line.

    Lines are as long as the terminal is wide, and longer in a pipe.  Keep-alives, and each INFO that repeats
    the greeting, are left out unless --all or --op asks for them.  --json has all frames, whole.

    With --follow it continues until a signal stops it, and then exits with 0.

    \b
    natsproxy capture cat traffic.ncap --subject 'orders.>' --op PUB
    natsproxy capture cat traffic.ncap --subject 'orders.>' --exchange --payload whole
    natsproxy capture cat traffic.ncap --role nak --client 'worker-*' --from 5m
    natsproxy capture cat traffic/ --json --follow
    """
    lines = FrameLines(terminal_width(), payload, raw=everything)
    quiet = not everything and choice.query.ops == ALL_OPS
    found = _follow(path, choice) if follow else listed(open_capture(path, tell_lost), choice)
    try:
        for one in found:
            if as_json:
                if isinstance(one, Listed):
                    click.echo(json_line(one))
            elif not (quiet and isinstance(one, Listed) and one.routine):
                for line in lines.lines(one):
                    click.echo(line)
    except KeyboardInterrupt:
        if not follow:
            raise


def _follow(path: Path, choice: Choice) -> Iterator[Listed | Event]:
    open_capture(path)  # raises for a path that is no capture; the follower would wait for one
    follower, chooser = Follower(path, tell_lost), Chooser(choice)
    while True:
        for ref, item in follower.poll():
            yield from chooser.see(ref, item)
        time.sleep(_POLL)
