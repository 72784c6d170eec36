"""`natsproxy capture`: the commands `cat`, `verify` and `recover`; the others join here."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path

import click

from natsproxy.capture.export.json_lines import json_line
from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of, read_frames, remarks
from natsproxy.capture.read.reader import Follower, open_capture
from natsproxy.capture.read.recover import Recovery
from natsproxy.capture.read.recover import recover as mend
from natsproxy.capture.read.recover import verify as check_file
from natsproxy.cli.diff import diff
from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.export import export
from natsproxy.cli.filters import filters
from natsproxy.cli.import_text import import_text
from natsproxy.cli.info import info
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.errors import CaptureError, Exit, MissingCapture, UnreadableCapture
from natsproxy.printable import printable
from natsproxy.wire.ops import C2S, Op

_COLOURS = {Op.ERR: "red", Op.CONNECT: "magenta", Op.INFO: "magenta", Op.SUB: "cyan", Op.UNSUB: "cyan"}
_POLL = 0.25  # seconds between two reads of a growing capture


@click.group()
def capture() -> None:
    """Show, check and mend captures."""


capture.add_command(diff)
capture.add_command(export)
capture.add_command(import_text)
capture.add_command(info)


@capture.command()
@click.argument("path", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each frame.")
@filters
@click.option("--follow", "-f", is_flag=True, help="Continue as the capture grows.")
def cat(path: Path, as_json: bool, query: Query, follow: bool) -> None:
    """Print the frames of a capture, one per line.

    With --follow it continues until a signal stops it, and then exits with 0.

    \b
    natsproxy capture cat traffic.ncap --subject 'orders.>' --op PUB
    natsproxy capture cat traffic/ --json --follow
    """
    show = json_line if as_json else text_line
    frames = _follow(path, query) if follow else read_frames(open_capture(path, tell_lost), query)
    try:
        for one in frames:
            click.echo(show(one))
    except KeyboardInterrupt:
        if not follow:
            raise


def _follow(path: Path, query: Query) -> Iterator[CapturedFrame]:
    open_capture(path)  # raises for a path that is no capture; the follower would wait for one
    follower = Follower(path, tell_lost)
    while True:
        for ref, item in follower.poll():
            if isinstance(item, Frames) and query.wants_record(item):
                yield from (one for one in frames_of(ref, item) if query.wants(one))
        time.sleep(_POLL)


def text_line(one: CapturedFrame) -> str:
    """Return a frame as a line for a person."""
    arrow = click.style("→" if one.direction == C2S else "←", fg="green" if one.direction == C2S else "blue")
    moment = datetime.datetime.fromtimestamp(one.wall / 1e9).strftime("%H:%M:%S.%f")
    text = _described(one)
    marks = remarks(one)
    tail = click.style(f"  [{', '.join(marks)}]", fg="yellow") if marks else ""
    return f"{click.style(moment, dim=True)} {one.conn:>4} {arrow} {text}{tail}"


def _described(one: CapturedFrame) -> str:
    frame = one.head
    if frame is None:
        return f"({len(one.data)} bytes of an incomplete frame)"
    name = click.style(f"{frame.op.label:<7}", fg=_COLOURS.get(frame.op), bold=True)
    if frame.args:
        return f"{name} {_short(frame.args, 160)}"
    fields = [
        frame.subject,
        frame.queue,
        frame.sid and b"sid " + frame.sid,
        frame.reply and b"reply " + frame.reply,
    ]
    text = " ".join(_short(field, 120) for field in fields if field)
    if one.frame is None:  # the payload was not kept
        return f"{name} {text}  {frame.size} bytes"
    if frame.headers:
        text += click.style(f"  {_short(frame.headers[8:].strip(), 80)}", dim=True)
    if frame.size > frame.header_size:
        text += f"  {_short(frame.body, 60)}"
    return f"{name} {text}"


def _short(raw: bytes, limit: int) -> str:
    text = printable(raw[:limit].replace(b"\r\n", " · ".encode()))
    return text + ("…" if len(raw) > limit else "")


@capture.command()
@click.argument("path", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(path: Path, as_json: bool) -> None:
    """Check every block of a capture.

    Exit code: 0 whole, 1 damaged or not closed (still being written, or its writer was killed), 2 not found.

    \b
    natsproxy capture verify traffic.ncap
    natsproxy capture verify traffic/ --json
    """
    try:
        found = list(_checked(open_capture(path).paths))
    except UnreadableCapture:
        raise
    except CaptureError as error:
        raise FoundWrong(str(error)) from None
    whole = all(result.whole for _, result in found)
    if as_json:
        segments = [{"path": str(file), "state": _state(result), **_counts(result)} for file, result in found]
        click.echo(json.dumps({"whole": whole, "segments": segments}))
    else:
        for file, result in found:
            click.echo(f"{printable(str(file))}: {_state(result)}; {_described_counts(result)}")
    if whole:
        return
    if all(not result.lost for _, result in found):
        click.echo("still being written, or its writer was killed; every block in it is whole", err=True)
    else:
        click.echo("save the whole blocks with: natsproxy capture recover SOURCE TARGET", err=True)
    raise SystemExit(Exit.FOUND_WRONG)


@capture.command()
@click.argument("source", type=FilePath())
@click.argument("target", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def recover(source: Path, target: Path, as_json: bool) -> None:
    """Write the whole blocks of a damaged capture file to a new one.

    Exit code: 0 nothing missing, 1 nothing can be saved (no segment header), 2 could not run, 3 some bytes
    were lost.

    \b
    natsproxy capture recover broken.ncap mended.ncap
    """
    result = mend(source, target)
    if not result.segment:
        raise FoundWrong(f"{source}: no segment header: nothing can be saved")
    if as_json:
        click.echo(json.dumps({"source": str(source), "target": str(target), **_counts(result)}))
    else:
        counts = _described_counts(result)
        click.echo(f"{printable(str(source))}: {counts}; in {printable(str(target))}")
    if result.lost:
        raise SystemExit(Exit.PARTLY)


def _checked(paths: list[Path]) -> Iterator[tuple[Path, Recovery]]:
    """Yield each segment that is still there, checked."""
    for path in paths:
        try:
            yield path, check_file(path)
        except MissingCapture as error:
            if len(paths) == 1:
                raise
            tell_lost(str(error))


def _state(result: Recovery) -> str:
    return "whole" if result.whole else "not closed" if not result.lost else "damaged"


def _counts(result: Recovery) -> dict[str, int]:
    return {"blocks": result.blocks, "frames": result.frames, "lost_bytes": result.lost}


def _described_counts(result: Recovery) -> str:
    blocks = "1 block" if result.blocks == 1 else f"{result.blocks:,} blocks"
    frames = "1 frame" if result.frames == 1 else f"{result.frames:,} frames"
    return f"{blocks}, {frames}, {result.lost:,} bytes lost"
