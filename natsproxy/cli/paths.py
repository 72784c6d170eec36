"""Paths on the command line: what they lead to is for those to say who open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class FilePath(click.Path):
    """A path, of something that is there or not; an empty one would be the folder that one is in."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, or fail where it is empty."""
        if not value:
            self.fail("it is empty: give the name of a file or folder", param, ctx)
        return super().convert(value, param, ctx)
