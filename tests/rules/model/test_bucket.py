"""A token bucket: the compiled one is that in Python, value by value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproxy.rules.model import _bucket_py
from natsproxy.rules.model.token_buckets import LONGEST, Rate
from natsproxy.units import HOUR, SECOND
from natsproxy.wire.scanner import COMPILED

if not COMPILED:
    pytest.skip("there is one bucket only", allow_module_level=True)
_bucket: Any = pytest.importorskip("natsproxy.rules.model._bucket")

RATES = st.builds(
    Rate,
    st.integers(1, 1 << 53) | st.integers(1, 20),
    st.sampled_from([SECOND, HOUR]),
    st.integers(1, 1 << 50) | st.integers(1, 9),
)
ACTS = st.sampled_from(["take"] * 6 + ["reserve", "reserve", "suspend", "leave", "use"])
STEPS = st.lists(
    st.tuples(ACTS, st.integers(1, 1 << 27) | st.integers(1, 9), st.integers(-SECOND, HOUR)), max_size=50
)


@given(RATES, STEPS)
@example(Rate(1, HOUR, 1), [("take", 1, 0), ("leave", 1, 0), ("take", 1, 0), ("use", 1, 0), ("take", 1, 0)])
@example(Rate(1, HOUR, 1 << 50), [("use", 1, 0)] + [("reserve", 1 << 27, 0)] * 9 + [("take", 1 << 27, 0)])
def test_the_compiled_bucket_is_the_one_in_python(rate: Rate, steps: list[tuple[str, int, int]]) -> None:
    """Also where the clock of one caller is a little behind that of another."""
    both = _bucket.Bucket(), _bucket_py.Bucket()
    now = 0
    for act, units, after in steps:
        now = max(0, now + after)
        values: dict[str, tuple[int, ...]] = {"suspend": (now + units,), "leave": (now,), "use": ()}
        values["take"] = values["reserve"] = *rate.times(units), now
        if act == "reserve" and both[0].full_at is None:
            act = "use"  # as `TokenBuckets` does
        compiled, python = (getattr(one, act)(*values[act]) for one in both)
        assert compiled == python
        assert both[0].full_at == both[1].full_at
        assert both[0].is_suspended(now) == both[1].is_suspended(now)


def test_no_time_is_too_long_for_either() -> None:
    rate = Rate(1, HOUR, 1 << 50)
    assert rate.times(1 << 50) == (LONGEST,) * 3
    for kind in (_bucket.Bucket, _bucket_py.Bucket):
        bucket = kind()
        bucket.use()
        for _ in range(9):
            bucket.reserve(*rate.times(1 << 50), 5)
        assert bucket.full_at == _bucket_py.LATEST
        assert not bucket.take(*rate.times(1 << 50), 5)


@pytest.mark.parametrize("kind", [_bucket.Bucket, _bucket_py.Bucket])
def test_a_bucket_out_of_use_gives_nothing(kind: Any) -> None:
    bucket, one = kind(), Rate(1, SECOND, 2).times(1)
    assert not bucket.take(*one, 0)
    bucket.use()
    assert [bucket.take(*one, 0) for _ in range(3)] == [True, True, False]
    assert not bucket.leave(2 * SECOND - 1)
    assert bucket.leave(2 * SECOND)
    assert not bucket.take(*one, HOUR)


@pytest.mark.parametrize("kind", [_bucket.Bucket, _bucket_py.Bucket])
def test_a_suspended_bucket_stays_in_use(kind: Any) -> None:
    bucket, one = kind(), Rate(1, SECOND, 2).times(1)
    bucket.use()
    bucket.suspend(SECOND)
    assert [bucket.take(*one, now) for now in (0, SECOND - 1, SECOND)] == [False, False, True]
    bucket.suspend(9 * SECOND)
    assert not bucket.leave(9 * SECOND - 1)
    assert bucket.leave(9 * SECOND)
