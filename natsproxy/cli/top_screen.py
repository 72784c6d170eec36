"""The screen of `natsproxy top`: facts of the proxy, and a table of connections as wide as the terminal.

Columns that do not fit are left out, the least important ones first.  Names and subjects come from clients:
control characters are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

from natsproxy.cli.payload_lines import cut
from natsproxy.printable import printable
from natsproxy.units import short_duration, short_size

_GAP: Final = "  "
_UNKNOWN: Final = "-"
Row = dict[str, Any]
"""A connection, as the API shows it, with its `rates`."""
Line = tuple[str, str]
"""A line and its style, as rich calls it."""


def _count(number: float | None) -> str:
    return (
        _UNKNOWN if number is None else f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.2g}"
    )


def _size(number: float | None) -> str:
    return _UNKNOWN if number is None else short_size(round(number))


def _rate(row: Row, name: str) -> float | None:
    rates = row["rates"]
    return None if rates is None else rates[name]


class _Column(NamedTuple):
    """A column.  rank: of importance, 0 the first.  most: cells; 0 for a number, which is at the right."""

    head: str
    rank: int
    text: Callable[[Row, int], str]
    most: int = 0


_COLUMNS: Final = (
    _Column("CONN", 0, lambda row, _: str(row["conn"])),
    _Column("CLIENT", 7, lambda row, _: row["client"], 21),
    _Column("NAME", 1, lambda row, _: row["name"], 24),
    _Column("USER", 14, lambda row, _: row["user"], 16),
    _Column("SUBS", 4, lambda row, _: _count(row["subscriptions"])),
    _Column("PENDING", 11, lambda row, _: _size(row["waiting"])),
    _Column("TO/S", 2, lambda row, _: _count(_rate(row, "out_msgs"))),
    _Column("FROM/S", 3, lambda row, _: _count(_rate(row, "in_msgs"))),
    _Column("BYTES_TO/S", 12, lambda row, _: _size(_rate(row, "out_bytes"))),
    _Column("BYTES_FROM/S", 13, lambda row, _: _size(_rate(row, "in_bytes"))),
    _Column("MSGS_TO", 5, lambda row, _: _count(row["out_msgs"])),
    _Column("MSGS_FROM", 6, lambda row, _: _count(row["in_msgs"])),
    _Column("BYTES_TO", 9, lambda row, _: _size(row["out_bytes"])),
    _Column("BYTES_FROM", 10, lambda row, _: _size(row["in_bytes"])),
    _Column("LANG", 15, lambda row, _: row["lang"], 10),
    _Column("VERSION", 16, lambda row, _: row["version"], 10),
    _Column("RTT", 17, lambda row, _: short_duration(row["rtt_ns"]) if row["rtt_ns"] else ""),
    _Column("UPTIME", 18, lambda row, now: short_duration(max(0, now - row["since_ns"]))),
    _Column("LAST", 8, lambda row, now: short_duration(max(0, now - row["last_ns"]))),
)


def screen(
    proxy: dict[str, Any], traffic: dict[str, Any], width: int, height: int | None = None, note: str = ""
) -> list[Line]:
    """Return the lines of the screen.

    proxy, traffic: as the API and `with_rates` give them.  height: the most lines, None for all.
    note: the line between facts and table.
    """
    groups = _facts(proxy, traffic)
    lines = [(line, "") for phrases in groups for line in _packed(map(printable, phrases), width)]
    if not proxy["ready"]:
        lines.append((cut(printable(f"not ready: {proxy['reason']}"), width), "bold red"))
    lines.append((cut(note, width), "bold"))
    rows = traffic["connections"]
    if height is not None:
        of_row = 2 if any(row.get("subjects") for row in rows) else 1
        rows = rows[: max(0, height - len(lines) - 2) // of_row]
    lines += table(rows, traffic["time_ns"], width)
    if len(rows) < traffic["total"]:
        lines.append((cut(f"{len(rows):,} of {traffic['total']:,} connections", width), "dim"))
    return lines[:height]


def help_lines(keys: Iterable[tuple[str, str]], width: int) -> Iterator[Line]:
    """Yield the help.  keys: with what they do."""
    for key, words in keys:
        yield cut(f"{key:>7}  {words}", width), ""


def _facts(proxy: dict[str, Any], traffic: dict[str, Any]) -> Iterator[list[str]]:
    """Yield groups of phrases, each on a line of its own where it fits."""
    up = short_duration(traffic["time_ns"] - traffic["started_ns"])
    way = f"{', '.join(proxy['listen'])} → {', '.join(proxy['upstream'])}"
    yield [f"natsproxy {proxy['name']}", way, f"up {up}"]
    rates: dict[str, float | None] = traffic["rates"] or {}
    yield [
        f"{words} {_count(rates.get(f'{way}_msgs'))} msgs/s {_size(rates.get(f'{way}_bytes'))}/s"
        for words, way in (("from clients", "in"), ("to clients", "out"))
    ]
    missed = f", {traffic['gap_frames']:,} frames missed" if traffic["gap_frames"] else ""
    yield [
        f"connections {traffic['total']:,} ({proxy['accepted']:,} so far)",
        f"subscriptions {traffic['subscriptions']:,}",
        f"rules {proxy['rules_enabled']:,} of {proxy['rules']:,}",
        f"firings {_count(rates.get('firings'))}/s",
        ("not recording" if proxy["capture"] is None else f"recording {proxy['capture']}") + missed,
    ]


def _packed(phrases: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines with as many phrases as fit."""
    line = ""
    for phrase in phrases:
        longer = f"{line}{_GAP}{phrase}" if line else phrase
        if line and cell_len(longer) > width:
            yield line
            longer = phrase
        line = cut(longer, width)
    yield line


def table(rows: list[Row], now: int, width: int) -> Iterator[Line]:
    """Yield the lines of connections, and of their subjects where they have them.

    now: the time of the answer (Unix ns).
    """
    texts = {column.head: [printable(column.text(row, now)) for row in rows] for column in _COLUMNS}
    widths = {
        column.head: min(max(map(cell_len, [column.head, *texts[column.head]])), column.most or width)
        for column in _COLUMNS
    }
    shown = list(_COLUMNS)
    while sum(widths[one.head] + len(_GAP) for one in shown) - len(_GAP) > width and len(shown) > 1:
        shown.remove(max(shown, key=lambda one: one.rank))

    def line(cells: Iterable[str]) -> str:
        padded = (_pad(cell, widths[one.head], one.most > 0) for cell, one in zip(cells, shown, strict=True))
        return cut(_GAP.join(padded).rstrip(), width)

    yield line(one.head for one in shown), "reverse"
    for number, row in enumerate(rows):
        yield line(texts[one.head][number] for one in shown), ""
        if subjects := row.get("subjects"):
            yield cut("    " + printable("  ".join(subjects)), width), "dim"


def _pad(text: str, width: int, left: bool) -> str:
    text = cut(text, width)
    space = " " * (width - cell_len(text))
    return text + space if left else space + text
