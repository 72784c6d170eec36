"""Counts, and the random numbers that are drawn by them: the compiled ones are those in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.rules.model import _counts_py, counts
from natsproxy.rules.model.seeded_random import SeededRandom
from natsproxy.wire.ops import C2S
from natsproxy.wire.scanner import COMPILED


def test_a_count_returns_the_number_of_the_first_match() -> None:
    for kind in (counts.Count, _counts_py.Count):
        count = kind(since=7)
        assert [count.match(), count.match(3), count.match()] == [1, 2, 5]
        count.fired += 2
        assert (count.since, count.matched, count.fired) == (7, 5, 2)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3))))
def test_recent_counts_forget_the_one_that_was_counted_longest_ago(
    limit: int, matches: list[tuple[int, int]]
) -> None:
    both = [kind(limit) for kind in (counts.RecentCounts, _counts_py.RecentCounts)]
    for number, size in matches:
        before = [one.add(number.to_bytes(8, "big"), size) for one in both]
        assert before[0] == before[1]
        assert len(both[0]) == len(both[1]) <= limit


def test_the_last_one_stays_where_the_limit_is_reached() -> None:
    recent = counts.RecentCounts(2)
    assert [recent.add(bytes([n] * 8), 1) for n in (1, 2, 1, 3, 1, 2)] == [0, 0, 1, 0, 2, 0]


if COMPILED:
    _gates: Any = pytest.importorskip("natsproxy.rules.model._gates")

    @given(st.text(max_size=300), st.integers(1, 1 << 62), st.integers(0, 3), st.binary(max_size=40))
    def test_compiled_numbers_are_the_seeded_ones(name: str, m: int, k: int, substream: bytes) -> None:
        """Whatever the length of what is hashed: it may end anywhere in a block of the hash."""
        seeded = SeededRandom(1, name, "app/1", C2S)
        for numbers in (seeded, seeded.substream(substream)):
            assert _gates.NativeDice(numbers.prefix).draw(m, k) == numbers.draw(m, k)

    def test_the_end_of_a_block_may_fall_anywhere() -> None:
        for size in range(280):
            seeded = SeededRandom(1, "r" * size, "", C2S)
            dice = _gates.NativeDice(seeded.prefix)
            assert [dice.draw(m) for m in (1, 10, 12345)] == [seeded.draw(m) for m in (1, 10, 12345)]
