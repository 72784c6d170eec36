"""Rates of counters: what has come between two answers of the admin API, by the answers' own clock."""

from __future__ import annotations

from typing import Any, Final

from natsproxy.units import SECOND

_RATED: Final = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
Row = dict[str, Any]
"""A connection, as the API shows it, with its `rates`."""


def with_rates(before: dict[str, Any] | None, traffic: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of `traffic` with `rates` a second; None where they are not known.

    before: the answer before; None for none, and that of an earlier start says nothing.
    """
    if before is not None and before["started_ns"] != traffic["started_ns"]:
        before = None
    passed = 0 if before is None else traffic["clock_ns"] - before["clock_ns"]
    rows = {} if before is None else {row["conn"]: row for row in before["connections"]}

    def of_connection(row: Row) -> dict[str, float] | None:
        earlier = rows.get(row["conn"])
        if earlier is None and before is not None and row["since_ns"] >= before["time_ns"]:
            earlier = dict.fromkeys(_RATED, 0)  # it is new
        return _rates(earlier, row, passed, _RATED)

    connections = [{**row, "rates": of_connection(row)} for row in traffic["connections"]]
    rates = _rates(before, traffic, passed, (*_RATED, "firings"))
    return {**traffic, "rates": rates, "connections": connections}


def _rates(
    before: dict[str, Any] | None, after: dict[str, Any], passed: int, names: tuple[str, ...]
) -> dict[str, float] | None:
    if before is None or passed <= 0:
        return None
    return {name: round((after[name] - before[name]) * SECOND / passed, 3) for name in names}


def busiest(rows: list[Row], most: int) -> list[Row]:
    """Return the connections with the most messages a second, both ways."""

    def messages(row: Row) -> float:
        rates = row["rates"]
        return 0.0 if rates is None else -rates["in_msgs"] - rates["out_msgs"]

    return sorted(rows, key=messages)[:most]
