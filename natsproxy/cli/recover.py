"""`natsproxy capture verify` and `recover`: check the blocks of a capture, and save those that are whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import Recovery
from natsproxy.capture.read.recover import recover as mend
from natsproxy.capture.read.recover import verify as check_file
from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.errors import CaptureError, Exit, MissingCapture, UnreadableCapture
from natsproxy.printable import printable


@click.command()
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


@click.command()
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
