"""Corruption keeps lengths, headers and control lines."""

from __future__ import annotations

import pytest

from tests.rules.kit import Wire

RULE = '[[rules]]\nname = "r"\nkind = "corrupt"\nbytes = 3\n'


@pytest.mark.parametrize("seed", range(20))
def test_the_body_changes_and_nothing_else(seed: int) -> None:
    raw = b"HMSG a 1 12 22\r\nNATS/1.0\r\n\r\n0123456789\r\n"
    out = Wire(RULE, seed=seed).s2c(raw)
    start = raw.index(b"0123")
    assert (out[:start], out[start + 10 :]) == (raw[:start], b"\r\n")
    changed = sum(a != b for a, b in zip(out, raw, strict=True))
    assert 1 <= changed <= 3


def test_the_same_seed_does_the_same_damage() -> None:
    outs = {Wire(RULE, seed=4).c2s("PUB a 10\n0123456789") for _ in range(3)}
    assert len(outs) == 1


def test_an_empty_body_passes() -> None:
    assert Wire(RULE).c2s("PUB a 0\n") == b"PUB a 0\r\n\r\n"
