"""`natsproxy capture export` and `import`: captures as text and back, as JSON lines, Parquet or packets."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Final

import click

from natsproxy.addresses import mask_url
from natsproxy.capture.export.json_lines import jsonl
from natsproxy.capture.export.output import output
from natsproxy.capture.export.parquet import parquet
from natsproxy.capture.export.pcapng import Leg, pcapng
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import CaptureReader, Follower, last_moment, open_capture
from natsproxy.capture.read.segment import unreadable
from natsproxy.capture.text.compiled import compile_text
from natsproxy.capture.text.writer import write_text
from natsproxy.cli.filters import filters
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.errors import NatsproxyError
from natsproxy.printable import printable
from natsproxy.traces.spans import Tracer

_FORMATS = "--text, --jsonl, --parquet, --pcapng, --otlp"
_POLL: Final = 0.25  # seconds between two reads of a growing capture


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
    "--otlp",
    "to_otlp",
    metavar="OUT|URL",
    help="Traces: JSON lines, or to an OpenTelemetry collector such as http://127.0.0.1:4318.",
)
@click.option("--follow", "-f", is_flag=True, help="Otlp: send new spans as the capture grows.")
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
    to_otlp: str | None,
    follow: bool,
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

    Traces have a span for each publish, request and delivery, up to its answer or ack.  With --follow they
    are sent to a collector until a signal stops it; the exit code is then 0.

    \b
    natsproxy capture export traffic.ncap --text traffic.nats.txt
    natsproxy capture export traffic.ncap --text cassette.nats.txt --brief
    natsproxy capture export traffic.ncap --parquet frames.parquet
    natsproxy capture export traffic/ --jsonl - --subject 'orders.>' | jq .subject
    natsproxy capture export traffic.ncap --pcapng - --conn 7 | wireshark -k -i -
    natsproxy capture export traffic/ --otlp http://127.0.0.1:4318 --follow
    """
    wanted = [name for name in (to_text, to_jsonl, to_parquet, to_pcapng, to_otlp) if name is not None]
    if len(wanted) != 1:
        raise click.UsageError(f"name one output: {_FORMATS}")
    if payload is not None and to_parquet is None:
        raise click.UsageError("--payload is for --parquet")
    if leg is not None and to_pcapng is None:
        raise click.UsageError("--leg is for --pcapng")
    if brief and to_text is None:
        raise click.UsageError("--brief is for --text")
    if follow and (to_otlp is None or not _is_url(to_otlp)):
        raise click.UsageError("--follow is for --otlp and the URL of a collector")
    if to_otlp is not None and _is_url(to_otlp):
        _send(path, to_otlp, query, follow=follow)
        return
    reader = open_capture(path, tell_lost)

    def write(out: IO[bytes]) -> int:
        if to_text is not None:
            return write_text(reader, out, query, brief=brief)
        if to_jsonl is not None:
            return jsonl(reader, out, query)
        if to_otlp is not None:
            # Imported where it is used: its packages are an extra.
            from natsproxy.traces.otlp import write as write_spans

            tracer = Tracer(str(path), query)
            return write_spans(chain(tracer.read(reader.items()), tracer.at_end()), out)
        if to_pcapng is not None:
            return pcapng(reader, out, query, leg or "client")
        return parquet(reader, out, query, -1 if payload is None else payload)

    if wanted[0] == "-":
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with output(Path(wanted[0]), reader, force=force) as out:
        count = write(out)
    click.echo(f"{wanted[0]}: {count} {'spans' if to_otlp is not None else 'frames'}", err=True)


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _send(path: Path, url: str, query: Query, *, follow: bool) -> None:
    """Send the spans of a capture to a collector; follow: those that begin from now on, until a signal."""
    from natsproxy.traces.otlp import Collector

    collector = Collector(url)
    if not follow:
        tracer = Tracer(str(path), query)
        count = collector.send(chain(tracer.read(open_capture(path, tell_lost).items()), tracer.at_end()))
        click.echo(f"{mask_url(url)}: {count} spans", err=True)
        return
    if query.start is None:
        query = replace(query, start=(last_moment(open_capture(path)) or 0) + 1)
    follower, tracer = Follower(path, tell_lost), Tracer(str(path), query)
    follower.pass_over(query.start or 0)

    def tell(error: NatsproxyError) -> None:
        click.echo(f"Warning: {error}", err=True)

    try:
        while True:
            collector.send(tracer.read(follower.poll()), tell)
            time.sleep(_POLL)
    except KeyboardInterrupt:
        collector.send(tracer.at_end(), tell)


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
