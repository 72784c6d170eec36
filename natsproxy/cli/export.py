"""`natsproxy capture export` and `import`: captures as text and back, as JSON lines, Parquet or packets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from natsproxy.capture.export.json_lines import jsonl
from natsproxy.capture.export.output import output
from natsproxy.capture.export.parquet import parquet
from natsproxy.capture.export.pcapng import Leg, pcapng
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import CaptureReader, open_capture
from natsproxy.capture.read.segment import unreadable
from natsproxy.capture.text.compiled import compile_text
from natsproxy.capture.text.writer import write_text
from natsproxy.cli.filters import filters
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.printable import printable

_FORMATS = "--text, --jsonl, --parquet, --pcapng"


@click.command()
@click.argument("path", type=FilePath())
@click.option(
    "--text", "to_text", metavar="OUT", help="Text that can be reviewed, edited and played: x.nats.txt."
)
@click.option("--brief", is_flag=True, help="Text: only what a playback needs, as in a cassette.")
@click.option("--jsonl", "to_jsonl", metavar="OUT", help="One JSON object per line, as capture cat --json.")
@click.option("--parquet", "to_parquet", metavar="OUT", help="The table frames, as analyze writes it.")
@click.option(
    "--pcapng", "to_pcapng", metavar="OUT", help="Packets for Wireshark, with invented TCP headers."
)
@click.option(
    "--payload",
    type=click.IntRange(0),
    metavar="BYTES",
    help="Parquet: cut payloads to this many bytes.  [default: all]",
)
@click.option("--leg", type=click.Choice(["client", "server"]), help="Pcapng: the leg.  [default: client]")
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@filters
def export(
    path: Path,
    to_text: str | None,
    to_jsonl: str | None,
    to_parquet: str | None,
    to_pcapng: str | None,
    payload: int | None,
    leg: Leg | None,
    brief: bool,
    force: bool,
    query: Query,
) -> None:
    """Write a capture as text, or its frames for other tools.  OUT is a file, or - for standard output.

    The file appears when it is complete.  A text plays as the capture does; `capture import` makes a capture
    of it again.  Packets show one leg; their TCP headers are invented.  Wireshark
    shows NATS on port 4222; for another port use its Decode As.

    \b
    natsproxy capture export traffic.ncap --text traffic.nats.txt
    natsproxy capture export traffic.ncap --text cassette.nats.txt --brief
    natsproxy capture export traffic.ncap --parquet frames.parquet
    natsproxy capture export traffic/ --jsonl - --subject 'orders.>' | jq .subject
    natsproxy capture export traffic.ncap --pcapng - --conn 7 | wireshark -k -i -
    """
    wanted = [name for name in (to_text, to_jsonl, to_parquet, to_pcapng) if name is not None]
    if len(wanted) != 1:
        raise click.UsageError(f"name one output: {_FORMATS}")
    if payload is not None and to_parquet is None:
        raise click.UsageError("--payload is for --parquet")
    if leg is not None and to_pcapng is None:
        raise click.UsageError("--leg is for --pcapng")
    if brief and to_text is None:
        raise click.UsageError("--brief is for --text")
    reader = open_capture(path, tell_lost)

    def write(out: IO[bytes]) -> int:
        if to_text is not None:
            return write_text(reader, out, query, brief=brief)
        if to_jsonl is not None:
            return jsonl(reader, out, query)
        if to_pcapng is not None:
            return pcapng(reader, out, query, leg or "client")
        return parquet(reader, out, query, -1 if payload is None else payload)

    if wanted[0] == "-":
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with output(Path(wanted[0]), reader, force=force) as out:
        count = write(out)
    click.echo(f"{wanted[0]}: {count} frames", err=True)


@click.command("import")
@click.argument("source", type=FilePath())
@click.argument("target", type=FilePath())
@click.option("--force", is_flag=True, help="Overwrite TARGET.")
def import_text(source: Path, target: Path, force: bool) -> None:
    """Write the capture of a text that `capture export --text` made, or that was written by hand.

    The file appears when it is complete.  Playback reads texts too, so this is for tools that do not.

    \b
    natsproxy capture import traffic.nats.txt traffic.ncap
    """
    try:
        file = source.open("rb")
    except OSError as error:
        raise unreadable(error, source) from None
    with file, output(target, CaptureReader([source]), force=force) as out:
        count = compile_text(file, source, out)
    click.echo(f"{printable(str(target))}: {count} frames", err=True)
