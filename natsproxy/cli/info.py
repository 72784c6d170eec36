"""`natsproxy capture info`: statistics, connections and top subjects of a capture, in one pass."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from natsproxy.capture.columns.counts import BlockCounts, count
from natsproxy.capture.format.records import Close, Open
from natsproxy.capture.listing.row import iso
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import BlockRef, Segment
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.cli.table import show_table
from natsproxy.printable import printable
from natsproxy.protocol.connect import parse_connect
from natsproxy.wire.ops import MESSAGE_OPS

_MESSAGES = {op.label for op in MESSAGE_OPS}
_MOST_SUBJECTS = 100_000  # templates that are counted: bounds the memory, whatever the traffic


@click.command()
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
    facts, segments = _Facts(), 0
    reader = open_capture(path, tell_lost)
    for file in reader.files():
        segments += 1
        facts.closed &= file.indexed() is not None
        facts.options |= _options(file.segment)
        for ref in file.blocks():
            facts.add(ref, count(file, ref))
    first, last = facts.first or 0, facts.last or 0
    return {
        "path": str(path),
        "segments": segments,
        "from": None if facts.first is None else iso(first),
        "seconds": (last - first) / 1e9,
        "frames": sum(facts.ops.values()),
        "bytes": facts.size,
        "gaps": facts.items["Gap"],
        "firings": facts.items["Firing"],
        "closed": facts.closed and not reader.unbegun,
        "ops": dict(facts.ops.most_common()),
        "subjects": [[subject, n] for subject, n in facts.subjects.most_common(top)],
        "options": facts.options,
        "causes": dict(facts.causes.most_common()),
        "connections": [{"conn": conn, **row} for conn, row in sorted(facts.connections.items())],
    }


class _Facts:
    """Sums over the blocks of a capture."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.closed = True
        self.options: dict[str, Any] = {}
        self.size = 0
        self.ops: Counter[str] = Counter()
        self.subjects: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        self.connections: dict[int, dict[str, Any]] = {}

    def add(self, ref: BlockRef, counts: BlockCounts) -> None:
        if not ref.summary.items:
            return
        times = [ref.summary.wall0 + t for t in (ref.summary.t_first, ref.summary.t_last)]
        self.first = min(times[0], times[0] if self.first is None else self.first)
        self.last = max(times[1], times[1] if self.last is None else self.last)
        self.size += counts.size
        for item in counts.others:
            self.items[type(item).__name__] += 1
            if isinstance(item, Open):
                self._connection(item.conn)["client"] = item.info.get("client")
            elif isinstance(item, Close):
                self._connection(item.conn)["end"] = item.cause
        for key, n in counts.frames.items():
            self._add_frames(*key, n)
        for conn, args in counts.connects:
            self._connection(conn)["name"] = _connect_name(args.encode())

    def _add_frames(self, conn: int, op: str | None, subject: str | None, cause: str | None, n: int) -> None:
        if cause:
            self.causes[cause] += n
        self.ops[op or "(not whole)"] += n
        if op is None:
            return
        facts = self._connection(conn)
        facts["frames"] = facts.get("frames", 0) + n
        # Known subjects are still counted when the table is full: the top ones come early.
        if op in _MESSAGES and (len(self.subjects) < _MOST_SUBJECTS or subject in self.subjects):
            self.subjects[subject or ""] += n

    def _connection(self, conn: int) -> dict[str, Any]:
        return self.connections.setdefault(conn, {})


def _options(segment: Segment) -> dict[str, Any]:
    """Return the options that a cassette was recorded with."""
    kept = segment.settings.get("cassette")
    named = {str(key): value for key, value in kept.items()} if isinstance(kept, dict) else {}
    plain: dict[str, Any] = json.loads(json.dumps(named, default=repr, skipkeys=True))
    return plain


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
    if facts["options"]:
        options = "  ".join(f"{name} {json.dumps(value)}" for name, value in facts["options"].items())
        click.echo(printable(f"options  {options}"))
    if facts["connections"]:
        fields = ("conn", "client", "name", "frames", "end")
        show_table(fields, ([row.get(key) for key in fields] for row in facts["connections"]), "connections")
    if facts["subjects"]:
        show_table(("frames", "subject"), ((n, subject) for subject, n in facts["subjects"]), "top subjects")
