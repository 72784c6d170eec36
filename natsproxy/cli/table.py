"""Tables on a terminal: cells are text, whatever they look like: no markup, no control characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from natsproxy.printable import printable

_WIDE: Final = 1_000  # columns: a script wants whole lines


def show_table(heads: Iterable[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """Print a table; None is an empty cell."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, title=title, title_justify="left")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
