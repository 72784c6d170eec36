"""Paths on the command line.  A path need not exist: the code that opens it reports that better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from natsproxy.capture.read.reader import open_capture
from natsproxy.printable import printable


class FilePath(click.Path):
    """A path that may or may not exist, but is not empty: `Path("")` would be the current folder."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fail when the text is empty."""
        if not value:
            self.fail("the path is empty: give the name of a file or folder", param, ctx)
        return super().convert(value, param, ctx)


def tell_lost(text: str) -> None:
    """Print a sentence about segments that are not read, or not twice."""
    click.echo(f"Warning: {printable(text)}", err=True)


def tell_continuation(path: Path) -> None:
    """Print a sentence where a recording goes on in a file that is not read."""
    if path.is_file():  # a folder, or a pattern, is a whole recording
        open_capture(path, tell_lost)
