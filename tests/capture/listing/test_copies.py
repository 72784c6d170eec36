"""The publishes that are known for their copies: the latest ones."""

from __future__ import annotations

import pytest

from natsproxy.capture.listing import copies
from natsproxy.capture.listing.copies import Copies


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LIMIT", 100)


def test_a_copy_is_that_of_its_publish_after_many_equal_ones() -> None:
    found = Copies()
    for number in range(1000):
        found.add(1, number)
        assert found.copy(1, "sub") == number
    assert found.copy(1, "sub") is None


def test_the_latest_publishes_of_all_keys_together_are_known() -> None:
    found = Copies()
    for key in (1, 2, 3):
        for number in range(60):
            found.add(key, 100 * key + number)
    assert found.copy(1, "sub") is None
    second = [found.copy(2, "sub") for _ in range(60)]
    assert second == [None] * 20 + list(range(220, 260))
    assert found.copy(3, "sub") == 300


def test_a_copy_on_every_subscription() -> None:
    found = Copies()
    found.add(1, 7)
    found.add(1, 8)
    assert [found.copy(1, sub) for sub in "aabab"] == [7, 8, 7, None, 8]


def test_a_subscription_gets_no_copy_of_what_was_published_before() -> None:
    found = Copies()
    for number in (1, 2, 7):
        found.add(1, number)
    assert found.copy(1, "old") == 1
    assert found.copy(1, "new", 5) == 7
    assert found.copy(1, "new", 5) is None
    assert found.copy(1, "newest", 9) is None
    found.add(1, 10)
    assert found.copy(1, "newest", 9) == 10
    assert found.copy(1, "old") == 2


def test_what_was_forgotten_was_published_before() -> None:
    found = Copies()
    for number in range(150):
        found.add(1, number)
    assert found.copy(1, "new", 120) == 121
