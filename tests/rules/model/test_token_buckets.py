"""Token buckets: the rate holds, bursts are there again, and keys are bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.rules.model.token_buckets import OTHERS, Rate, TokenBuckets
from natsproxy.units import SECOND

TEN = Rate(10, SECOND, 3)
MS = 1_000_000


def test_a_burst_then_the_rate() -> None:
    buckets = TokenBuckets(10)
    assert [buckets.take("a", 1, TEN, 0) for _ in range(4)] == [True, True, True, False]
    assert not buckets.take("a", 1, TEN, 100 * MS - 1)
    assert buckets.take("a", 1, TEN, 100 * MS)
    assert [buckets.take("a", 1, TEN, 10 * SECOND) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b", 1, TEN, 10 * SECOND)


def test_turns_come_at_the_rate() -> None:
    buckets = TokenBuckets(10)
    assert [buckets.reserve("a", 1, TEN, 0) for _ in range(6)] == [0, 0, 0, 100 * MS, 200 * MS, 300 * MS]


def test_more_than_the_burst_needs_a_full_bucket_and_is_paid_for() -> None:
    buckets = TokenBuckets(10)
    assert buckets.take("a", 30, TEN, 0)
    assert not buckets.take("a", 1, TEN, 28 * 100 * MS - 1)
    assert buckets.take("a", 1, TEN, 28 * 100 * MS)
    assert not buckets.take("a", 30, TEN, 30 * 100 * MS)


def test_full_buckets_make_room_and_others_do_not() -> None:
    buckets = TokenBuckets(2)
    for key in ("a", "b"):
        assert buckets.known(key, 0) == key
        assert buckets.take(key, 1, TEN, 0)
    assert buckets.known("c", 100 * MS - 1) == OTHERS  # else "a" could be there again, with a full bucket
    assert buckets.known("a", 0) == "a"
    assert buckets.known("c", 100 * MS) == "c"
    assert len(buckets) == 0


@given(
    st.integers(1, 50),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 30), st.booleans()), max_size=60),
)
def test_never_more_than_burst_and_rate(amount: int, burst: int, asked: list[tuple[int, int, bool]]) -> None:
    """What goes between any two times is at most the burst, the rate, and the excess of one large frame."""
    rate, buckets, now = Rate(amount, SECOND, burst), TokenBuckets(1), 0
    went: list[tuple[int, int]] = []
    for after, units, waits in asked:
        now += after * MS
        if waits:
            went.append((buckets.reserve("k", units, rate, now), units))
        elif buckets.take("k", units, rate, now):
            went.append((now, units))
    for start, _ in went:
        for end in {time for time, _ in went if time >= start}:
            inside = [units for time, units in went if start <= time <= end]
            large = max(units for units in inside) - burst
            assert sum(inside) <= burst + (end - start + 1) * amount / SECOND + max(0, large) + 1
