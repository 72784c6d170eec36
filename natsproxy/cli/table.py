"""Tables on a terminal: cells are text, whatever they look like: no markup, no control characters."""

from __future__ import annotations

from collections.abc import Iterable

from natsproxy.printable import printable


def show_table(heads: Iterable[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """Print a table; None is an empty cell."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*heads, box=None, title=title, title_justify="left")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    Console(highlight=False, markup=False).print(table)
