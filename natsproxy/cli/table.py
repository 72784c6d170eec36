"""Tables on a terminal: cells are text, whatever they look like: no markup, no control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from natsproxy.printable import printable, wants_plain

_SHORT: Final = 8  # columns: on a narrow terminal what is longer is folded, down to this
_WIDE: Final = 1_000  # columns: a script wants whole lines


def show_table(heads: Sequence[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """Print a table; None is an empty cell."""
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
