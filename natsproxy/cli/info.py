"""`natsproxy capture info`: statistics, connections and top subjects of a capture, in one pass.

The index of a segment tells frames and times.  The rest is in the blocks, and of a large capture only every
n-th block is read: what was counted so is said to be.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from natsproxy.capture.columns.counts import BlockCounts, count
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import CloseRecord, FiringRecord, GapRecord, Item, OpenRecord, Preamble
from natsproxy.capture.listing.row import iso
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import BlockRef, CaptureFile, Segment
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.cli.table import show_table
from natsproxy.errors import ProtocolError
from natsproxy.printable import printable
from natsproxy.protocol.meaning import client_name
from natsproxy.units import MIB, short_size
from natsproxy.wire.ops import C2S, MESSAGE_OPS, Op
from natsproxy.wire.parse import frames as parse_frames

_MESSAGES: Final = {op.label for op in MESSAGE_OPS}
_MOST: Final = 100_000  # subjects and connections that are counted: bounds the memory, whatever the traffic
_WHO: Final = ("user", "account", "tls_subject")
"""The members of a record that tell who a client is."""
_READ: Final = 256 * MIB  # of a capture: some seconds


@click.command()
@click.argument("path", type=FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="How many subjects and connections to show.",
)
@click.option("--exact", is_flag=True, help="Count everything, even in captures larger than 256 MiB.")
def info(path: Path, as_json: bool, top: int, exact: bool) -> None:
    """Show statistics, top connections and top subjects of a capture.

    Of a capture of more than 256 MiB every n-th block is counted, and the output says so; frames and times
    are exact all the same.

    \b
    natsproxy capture info traffic.ncap
    natsproxy capture info traffic/ --top 50 --json
    """
    facts = _read_facts(path, top, exact)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    _print_facts(facts)


def _read_facts(path: Path, top: int, exact: bool) -> dict[str, Any]:
    reader = open_capture(path, tell_lost)
    size = 0
    for file_path in reader.paths:
        with suppress(OSError):  # the reader tells of it
            size += file_path.stat().st_size
    stride = 1 if exact else -(-size // _READ) or 1
    facts = _Facts()
    for file in reader.files():
        facts.segments += 1
        facts.runs.add(file.segment.recorder)
        facts.options |= _options(file.segment)
        for ref, counted in _blocks(file, facts, stride):
            facts.note(ref)
            if counted:
                facts.add(file.segment, count(file, ref))
    connections = facts.connections.items()
    most = sorted(connections, key=lambda one: -one[1].get("frames", 0))[:top]
    first, last = facts.first or 0, facts.last or 0
    return {
        "path": str(path),
        "segments": facts.segments,
        "from": None if facts.first is None else iso(first),
        "seconds": (last - first) / 1e9,
        "frames": facts.frames,
        "file_bytes": size,
        "closed": facts.closed and not reader.unbegun,
        "options": facts.options,
        "counted": f"1/{stride}",
        "bytes": facts.size,
        "gaps": facts.items[GapRecord],
        "firings": facts.items[FiringRecord],
        "ops": dict(facts.ops.most_common()),
        "subjects": [[subject, n] for subject, n in facts.subjects.most_common(top)],
        "causes": dict(facts.causes.most_common(top)),
        "connection_count": len(connections),
        "runs": len(facts.runs),
        "connections": [
            {"recorder": conn.recorder.hex(), "run": conn.run, "conn": conn.number, **row}
            for conn, row in most
        ],
    }


def _blocks(file: CaptureFile, facts: _Facts, stride: int) -> Iterator[tuple[BlockRef, bool]]:
    """Yield the blocks of a segment, and whether each is to be counted."""
    indexed = file.indexed()
    facts.closed &= indexed is not None
    for ref in file.blocks() if indexed is None or stride == 1 else indexed:
        facts.blocks += 1
        if facts.blocks % stride:
            yield ref, False
        else:  # the index does not know flags and checksum: its own header does
            block = file.block_at(ref.block.offset)
            yield (file.ref(block) if block is not None else None) or ref, True


class _Facts:
    """Sums over the blocks of a capture; `connections` are by their identity."""

    def __init__(self) -> None:
        self.segments = self.blocks = self.frames = self.size = 0
        self.runs: set[bytes] = set()
        self.first: int | None = None
        self.last: int | None = None
        self.closed = True
        self.options: dict[str, Any] = {}
        self.ops: Counter[str] = Counter()
        self.subjects: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.items: Counter[type[Item]] = Counter()
        self.connections: dict[ConnectionId, dict[str, Any]] = {}

    def note(self, ref: BlockRef) -> None:
        """Add what the summary of a block tells."""
        summary = ref.summary
        if not summary.items:
            return
        times = [summary.wall0 + t for t in (summary.t_first, summary.t_last)]
        self.first = min(times[0], times[0] if self.first is None else self.first)
        self.last = max(times[1], times[1] if self.last is None else self.last)
        self.frames += summary.frames

    def add(self, segment: Segment, counts: BlockCounts) -> None:
        """Add what a block holds."""
        self.size += counts.size
        for item in counts.others:
            self.items[type(item)] += 1
            if isinstance(item, OpenRecord | CloseRecord | Preamble):
                self._connection(segment.connection(item.conn)).update(_known(item))
        for key, n in counts.frames.items():
            self._add_frames(segment, *key, n)
        for conn, args in counts.connects:
            self._connection(segment.connection(conn))["name"] = client_name(args.encode())

    def _add_frames(
        self, segment: Segment, conn: int, op: str | None, subject: str | None, cause: str | None, n: int
    ) -> None:
        if cause:
            self.causes[cause] += n
        self.ops[op or "(not whole)"] += n
        if op is None:
            return
        facts = self._connection(segment.connection(conn))
        facts["frames"] = facts.get("frames", 0) + n
        # Known subjects are still counted when the table is full: the top ones come early.
        if op in _MESSAGES and (len(self.subjects) < _MOST or subject in self.subjects):
            self.subjects[subject or ""] += n

    def _connection(self, conn: ConnectionId) -> dict[str, Any]:
        if len(self.connections) >= _MOST and conn not in self.connections:
            return {}  # as with subjects
        return self.connections.setdefault(conn, {})


def _named(info: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: info[name] for name in names if isinstance(info.get(name), str)}


def _known(item: OpenRecord | CloseRecord | Preamble) -> dict[str, Any]:
    """Return what an item says of its connection."""
    if isinstance(item, OpenRecord):
        return _named(item.info, "client", *_WHO)
    if isinstance(item, CloseRecord):
        return {**_named(item.info, *_WHO), "end": item.cause}
    opened, connect = item.info.get("open"), item.info.get("connect")
    found = _named(opened, "client", *_WHO) if isinstance(opened, dict) else {}
    with suppress(ProtocolError):  # a hostile capture: it has no name
        for frame in parse_frames(connect, C2S) if isinstance(connect, bytes) else ():
            if frame.op == Op.CONNECT:
                found["name"] = client_name(frame.args)
    return found


def _options(segment: Segment) -> dict[str, Any]:
    """Return the options that a cassette was recorded with."""
    kept = segment.settings.get("cassette")
    named = {str(key): value for key, value in kept.items()} if isinstance(kept, dict) else {}
    plain: dict[str, Any] = json.loads(json.dumps(named, default=repr, skipkeys=True))
    return plain


def _print_facts(facts: dict[str, Any]) -> None:
    state = "closed" if facts["closed"] else "not closed: readable to its last whole block"
    segments = "1 segment" if facts["segments"] == 1 else f"{facts['segments']:,} segments"
    segments += f" of {facts['runs']:,} runs" if facts["runs"] > 1 else ""
    size = short_size(facts["file_bytes"])
    click.echo(f"{click.style(printable(facts['path']), bold=True)}  {segments}, {size}, {state}")
    if facts["from"] is None:
        click.echo("the capture is empty")
        return
    click.echo(f"{facts['frames']:,} frames in {facts['seconds']:.3f} s from {facts['from']}")
    if facts["options"]:
        options = "  ".join(f"{name} {json.dumps(value)}" for name, value in facts["options"].items())
        click.echo(printable(f"options  {options}"))
    if facts["counted"] != "1/1":
        told = f"counted in {facts['counted'].replace('/', ' of ')} blocks (--exact counts all):"
        click.echo(click.style(told, fg="yellow"))
    click.echo(f"{facts['bytes']:,} bytes, {facts['firings']:,} firings, {facts['gaps']:,} gaps")
    for counts in (facts["ops"], facts["causes"]):
        if counts:
            click.echo(printable("  ".join(f"{name} {n:,}" for name, n in counts.items())))
    if facts["connections"]:
        who = (name for name in _WHO if any(name in row for row in facts["connections"]))
        fields = ("conn", "client", "name", *who, "frames", "end")
        title = f"connections: {len(facts['connections']):,} of {facts['connection_count']:,}"
        rows = ({**row, "conn": _label(row)} for row in facts["connections"])
        show_table(fields, ([row.get(key) for key in fields] for row in rows), title)
    if facts["subjects"]:
        show_table(("frames", "subject"), ((n, subject) for subject, n in facts["subjects"]), "top subjects")


def _label(row: dict[str, Any]) -> str:
    """Return the name of a connection, as `--conn` takes it."""
    return str(ConnectionId(bytes.fromhex(row["recorder"]), row["run"], row["conn"]))
