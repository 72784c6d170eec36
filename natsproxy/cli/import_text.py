"""`natsproxy capture import`: the capture of a text."""

from __future__ import annotations

from pathlib import Path

import click

from natsproxy.capture.export.output import output
from natsproxy.capture.read.reader import CaptureReader
from natsproxy.capture.read.segment import unreadable
from natsproxy.capture.text.compiled import compile_text
from natsproxy.cli.paths import FilePath
from natsproxy.printable import printable


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
