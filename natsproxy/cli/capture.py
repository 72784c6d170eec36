"""`natsproxy capture`: the commands `info`, `cat`, `verify` and `recover`; `diff` and `export` join here."""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from natsproxy.capture.export.json_lines import iso, json_line
from natsproxy.capture.format.records import Close, Firing, Frames, Gap, Open
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of, read_frames, remarks
from natsproxy.capture.read.reader import Follower, open_capture
from natsproxy.capture.read.recover import Recovery
from natsproxy.capture.read.recover import recover as mend
from natsproxy.capture.read.recover import verify as check_file
from natsproxy.cli.diff import diff
from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.export import export
from natsproxy.cli.filters import filters
from natsproxy.cli.paths import FilePath
from natsproxy.cli.table import show_table
from natsproxy.errors import CaptureError, Exit, UnreadableCapture
from natsproxy.printable import printable
from natsproxy.protocol.connect import parse_connect
from natsproxy.protocol.template import template
from natsproxy.wire.ops import C2S, MESSAGE_OPS, Op

_COLOURS = {Op.ERR: "red", Op.CONNECT: "magenta", Op.INFO: "magenta", Op.SUB: "cyan", Op.UNSUB: "cyan"}
_POLL = 0.25  # seconds between two reads of a growing capture
_MOST_SUBJECTS = 100_000  # templates that `info` counts: bounds its memory, whatever the traffic


@click.group()
def capture() -> None:
    """Show, check and mend captures."""


capture.add_command(diff)
capture.add_command(export)


@capture.command()
@click.argument("path", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(0), metavar="N", help="Number of subjects."
)
def info(path: Path, as_json: bool, top: int) -> None:
    """Show statistics, connections and top subjects of a capture.

    \b
    natsproxy capture info traffic.ncap
    natsproxy capture info traffic/ --json
    """
    facts = _read_facts(path, top)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    _print_facts(facts)


def _read_facts(path: Path, top: int) -> dict[str, Any]:
    reader = open_capture(path)
    ops: Counter[str] = Counter()
    subjects: Counter[bytes] = Counter()
    causes: Counter[str] = Counter()
    connections: dict[int, dict[str, Any]] = {}
    counts = Counter[str]()
    times: list[int] = []
    for ref, item in reader.items():
        t = ref.wall(item.t)
        times = [min([t, *times[:1]]), max([t, *times[1:]])]
        if isinstance(item, Frames):
            counts["bytes"] += len(item.data)
            for one in frames_of(ref, item):
                _count(one, ops, subjects, connections, causes)
        elif isinstance(item, Open):
            connections.setdefault(item.conn, {}).update(client=item.info.get("client"))
        elif isinstance(item, Close):
            connections.setdefault(item.conn, {}).update(end=item.cause)
        elif isinstance(item, Gap):
            counts["gaps"] += 1
        elif isinstance(item, Firing):
            counts["firings"] += 1
    tail = reader.tail()
    return {
        "path": str(path),
        "segments": len(reader.paths),
        "from": iso(times[0]) if times else None,
        "seconds": (times[1] - times[0]) / 1e9 if times else 0,
        "frames": sum(ops.values()),
        "bytes": counts["bytes"],
        "gaps": counts["gaps"],
        "firings": counts["firings"],
        "closed": tail is None,
        "ops": dict(ops.most_common()),
        "subjects": [[subject.decode("utf-8", "replace"), n] for subject, n in subjects.most_common(top)],
        "causes": dict(causes.most_common()),
        "connections": [{"conn": conn, **facts} for conn, facts in sorted(connections.items())],
    }


def _count(
    one: CapturedFrame,
    ops: Counter[str],
    subjects: Counter[bytes],
    connections: dict[int, dict[str, Any]],
    causes: Counter[str],
) -> None:
    frame = one.head
    if one.cause:
        causes[one.cause] += 1
    if frame is None:
        ops["(not whole)"] += 1
        return
    ops[frame.op.label] += 1
    facts = connections.setdefault(one.conn, {})
    facts["frames"] = facts.get("frames", 0) + 1
    if frame.op == Op.CONNECT:
        facts["name"] = _connect_name(frame.args)
    if frame.op in MESSAGE_OPS:
        subject = template(frame.subject)
        # Known subjects are still counted when the table is full: the top ones come early.
        if len(subjects) < _MOST_SUBJECTS or subject in subjects:
            subjects[subject] += 1


def _connect_name(args: bytes) -> str:
    try:
        return parse_connect(args).name
    except ValueError:
        return ""


def _print_facts(facts: dict[str, Any]) -> None:
    state = "closed" if facts["closed"] else "not closed: readable to its last whole block"
    segments = "1 segment" if facts["segments"] == 1 else f"{facts['segments']} segments"
    click.echo(f"{click.style(printable(facts['path']), bold=True)}  {segments}, {state}")
    if facts["from"] is None:
        click.echo("the capture is empty")
        return
    click.echo(
        f"{facts['frames']:,} frames, {facts['bytes']:,} bytes in {facts['seconds']:.3f} s "
        f"from {facts['from']}, {facts['firings']} firings, {facts['gaps']} gaps"
    )
    if facts["ops"]:
        click.echo("  ".join(f"{op} {n:,}" for op, n in facts["ops"].items()))
    if facts["connections"]:
        fields = ("conn", "client", "name", "frames", "end")
        show_table(fields, ([row.get(key) for key in fields] for row in facts["connections"]), "connections")
    if facts["subjects"]:
        show_table(("frames", "subject"), ((n, subject) for subject, n in facts["subjects"]), "top subjects")


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
    frames = _follow(path, query) if follow else read_frames(open_capture(path), query)
    try:
        for one in frames:
            click.echo(show(one))
    except KeyboardInterrupt:
        if not follow:
            raise


def _follow(path: Path, query: Query) -> Iterator[CapturedFrame]:
    open_capture(path)  # raises for a path that is no capture; the follower would wait for one
    follower = Follower(path)
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
        found = [(file, check_file(file)) for file in open_capture(path).paths]
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


def _state(result: Recovery) -> str:
    return "whole" if result.whole else "not closed" if not result.lost else "damaged"


def _counts(result: Recovery) -> dict[str, int]:
    return {"blocks": result.blocks, "frames": result.frames, "lost_bytes": result.lost}


def _described_counts(result: Recovery) -> str:
    blocks = "1 block" if result.blocks == 1 else f"{result.blocks:,} blocks"
    frames = "1 frame" if result.frames == 1 else f"{result.frames:,} frames"
    return f"{blocks}, {frames}, {result.lost:,} bytes lost"
