"""`natsproxy capture cat`: the frames of a capture, for people and as JSON."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from natsproxy.capture.listing.choice import Choice, Chooser, listed
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.listing.row import json_line
from natsproxy.capture.read.reader import Follower, last_moment, open_capture
from natsproxy.cli.filters import choices
from natsproxy.cli.frame_lines import FramePrinter, shown_frames, terminal_width
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.units import SECOND
from natsproxy.wire.ops import ALL_OPS

_POLL: Final = 0.25  # seconds between two reads of a growing capture
_LAST: Final = 10  # lines of the past that are shown before it grows


@click.command()
@click.argument("path", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each frame.")
@shown_frames
@choices
@click.option("--follow", "-f", is_flag=True, help="Print new frames as the capture grows.")
def cat(path: Path, as_json: bool, payload: str, everything: bool, choice: Choice, follow: bool) -> None:
    """Print the frames of a capture, one per line.

    Lines are as long as the terminal is wide, and longer in a pipe.  Keep-alives, and each INFO that repeats
    the greeting, are left out unless --all or --op asks for them.  --json has all frames, whole.

    With --follow it shows the last frames, or those since --from, and continues until a signal stops it; the
    exit code is then 0.

    \b
    natsproxy capture cat traffic.ncap --subject 'orders.>' --op PUB
    natsproxy capture cat traffic.ncap --subject 'orders.>' --exchange --payload whole
    natsproxy capture cat traffic.ncap --role nak --client 'worker-*' --from 5m
    natsproxy capture cat traffic/ --json --follow
    """
    lines = FramePrinter(terminal_width(), payload, raw=everything)
    quiet = not everything and choice.query.ops == ALL_OPS

    def is_shown(one: Listed | Event) -> bool:
        if as_json:
            return isinstance(one, Listed)
        return not (quiet and isinstance(one, Listed) and one.routine)

    found = _follow(path, choice, is_shown) if follow else listed(open_capture(path, tell_lost), choice)
    try:
        for one in filter(is_shown, found):
            if isinstance(one, Listed) and as_json:
                click.echo(json_line(one))
            else:
                for line in lines.lines(one):
                    click.echo(line)
    except KeyboardInterrupt:
        if not follow:
            raise


def _follow(
    path: Path, choice: Choice, is_shown: Callable[[Listed | Event], bool]
) -> Iterator[Listed | Event]:
    """Yield what --from asks for, or the last frames of the last second, and then each one that comes."""
    end = last_moment(open_capture(path)) or 0
    whole = choice.query.start is not None
    if not whole:
        choice = replace(choice, query=replace(choice.query, start=end - SECOND))
    follower, chooser = Follower(path, tell_lost), Chooser(choice)
    follower.pass_over(choice.query.start or 0)

    def new() -> Iterator[Listed | Event]:
        for file, ref in follower.blocks():
            yield from chooser.read(file, ref)

    yield from new() if whole else deque(filter(is_shown, new()), maxlen=_LAST)
    while True:
        time.sleep(_POLL)
        yield from new()
