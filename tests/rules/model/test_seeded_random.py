"""Draws depend on who asks and on nothing else."""

from __future__ import annotations

from collections import Counter

from natsproxy.rules.model import seeded_random
from natsproxy.rules.model.seeded_random import SeededRandom
from natsproxy.wire.ops import C2S, S2C


def test_the_same_question_has_the_same_answer() -> None:
    assert SeededRandom(1, "r", "k", C2S).draw(5, 2) == SeededRandom(1, "r", "k", C2S).draw(5, 2)


def test_everything_that_is_asked_counts() -> None:
    others = [
        SeededRandom(2, "r", "k", C2S).draw(5),
        SeededRandom(1, "q", "k", C2S).draw(5),
        SeededRandom(1, "r", "j", C2S).draw(5),
        SeededRandom(1, "r", "k", S2C).draw(5),
        SeededRandom(1, "r", "k", C2S).draw(6),
        SeededRandom(1, "r", "k", C2S).draw(5, 1),
        SeededRandom(1, "rk", "", C2S).draw(5),
        SeededRandom(1, "", "rk", C2S).draw(5),
    ]
    assert len({SeededRandom(1, "r", "k", C2S).draw(5), *others}) == len(others) + 1


def test_a_known_value_never_changes() -> None:
    """A seed in an old capture must give the old run again."""
    assert SeededRandom(42, "lossy", "app/1", C2S).draw(1) == 0.35470932005057004


def test_draws_are_uniform_and_inside() -> None:
    throw = SeededRandom(3, "r", "k", C2S)
    draws = [throw.draw(m) for m in range(10_000)]
    assert all(0 < u < 1 for u in draws)
    tenths = Counter(int(u * 10) for u in draws)
    assert all(880 < tenths[k] < 1120 for k in range(10))


def test_weights_leave_the_rest_to_nobody() -> None:
    choose = seeded_random.weighted((30, 20))
    assert [choose(u / 100 + 0.001) for u in (0, 29, 30, 49, 50, 99)] == [0, 0, 1, 1, None, None]


def test_one_measured_value_is_a_constant() -> None:
    assert {seeded_random.empirical((5.0,)).sample(u) for u in (0.01, 0.5, 0.99)} == {5.0}


def test_numbers_drawn_together_are_those_drawn_one_by_one() -> None:
    throw = SeededRandom(9, "r", "k", C2S)
    for probability in (0.0, 0.01, 0.5, throw.draw(7), 0.999999, 1.0):
        singly = [m for m in range(5, 400) if throw.draw(m) < probability]
        assert throw.below(5, 395, probability) == singly
