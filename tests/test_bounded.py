"""Tables of a replay stay small."""

from __future__ import annotations

from natsproxy.bounded import LIMIT, BoundedDict


def test_tables_forget_the_oldest() -> None:
    table: BoundedDict[int, int] = BoundedDict()
    for n in range(LIMIT + 5):
        table[n] = n
    assert len(table) == LIMIT
    assert 4 not in table
