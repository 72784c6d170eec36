"""Tables on a terminal.  Cells come from peers and captures, so markup and control characters stay inert."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from natsproxy.printable import printable, wants_plain

_SHORT: Final = 8  # columns: a narrow terminal folds longer cells, but never below this width
_WIDE: Final = 1_000  # columns, where output is no terminal: a script needs each row on one line


def show_table(heads: Sequence[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """Print a table; a cell of None is empty."""
    from rich.console import Console
    from rich.table import Table

    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, title=title, title_justify="left", pad_edge=False)
    for head, *column in zip(heads, *cells, strict=True):
        widest = max(map(len, (head, *column)))
        table.add_column(head, overflow="fold", no_wrap=widest <= _SHORT, min_width=min(widest, _SHORT))
    for row in cells:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, color_system=None if wants_plain() else "auto")
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
