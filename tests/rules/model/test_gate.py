"""Which matches a gate lets through."""

from __future__ import annotations

import pytest

from natsproxy.rules.model.gate import OPEN, Count, Gate, Window, ordinal


def fired(gate: Gate, matches: int = 12, *, u: float = 0.5, key: str = "k") -> list[int]:
    count = Count()
    found = []
    for m in range(1, matches + 1):
        count.matched += 1
        if gate.admits(count, m, (key,), 0, lambda: u):
            found.append(m)
    return found


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (Gate(), list(range(1, 13))),
        (Gate(first=3), [1, 2, 3]),
        (Gate(after=9), [10, 11, 12]),
        (Gate(after=2, first=3), [3, 4, 5]),
        (Gate(every=4), [4, 8, 12]),
        (Gate(after=1, every=4), [5, 9]),
        (Gate(every=3, limit=2), [3, 6]),
        (Gate(probability=0.4), []),
        (Gate(probability=0.6, limit=2), [1, 2]),
        (Gate(probability=1.0), list(range(1, 13))),
        (Gate(probability=0.0), []),
        (Gate(only={"k": frozenset({2, 7})}), [2, 7]),
        (Gate(only={"other": frozenset({2, 7})}), []),
    ],
)
def test_conditions_add_up(gate: Gate, expected: list[int]) -> None:
    assert fired(gate) == expected


def test_a_window_is_half_open() -> None:
    gate = Gate(between=Window(5, 9))
    assert [gate.in_time(age) for age in (4, 5, 8, 9)] == [False, True, True, False]
    assert Gate(between=Window(5, None)).in_time(10**18)


def test_age_is_counted_from_when_counting_began() -> None:
    assert Gate(between=Window(5, 9)).admits(Count(since=100, matched=1), 1, ("k",), 106, lambda: 0.5)


def test_the_open_gate_knows_that_it_is() -> None:
    assert OPEN.open
    assert not Gate(limit=1).open


def test_words() -> None:
    assert Gate().describe() == "always"
    second = 10**9
    words = Gate(probability=0.5, every=2, between=Window(second, None)).describe()
    assert words == "every 2nd, with probability 0.5, at age 1s to the end"
    words = Gate(every=2, per_proxy=True, between=Window(second, 2 * second)).describe()
    assert words == "every 2nd, counted over all connections, 1s to 2s after it came into force"
    assert Gate(between=Window(0, second, since_rule=True)).describe() == "0s to 1s after it came into force"
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "102nd",
        "111th",
    ]
    assert Gate(every=3, limit=1).describe() == "every 3rd, once at most"


def test_exact_firings_of_clients_whose_names_are_alike() -> None:
    """The second worker, whatever its name is."""
    gate = Gate(only={"c2s worker-*/2": frozenset({3})})
    for keys, direction, expected in (
        (("worker-77/1", "worker-*/2"), "c2s", True),
        (("worker-77/1", "worker-*/1"), "c2s", False),
        (("worker-77/1", "worker-*/2"), "s2c", False),
    ):
        assert gate.admits(Count(matched=3), 3, keys, 0, lambda: 0.5, direction) is expected
