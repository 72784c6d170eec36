"""Duplicates stand next to their frame, whole."""

from __future__ import annotations

from natsproxy.wire.ops import C2S
from tests.rules.kit import Wire

RULE = '[[rules]]\nname = "r"\nkind = "duplicate"\ncopies = 2\n'


def test_copies_follow_the_frame() -> None:
    assert Wire(RULE).c2s("PUB a 1\nx") == b"PUB a 1\r\nx\r\n" * 3


def test_copies_are_rewritten_with_it() -> None:
    wire = Wire(RULE + '[[rules]]\nname = "t"\nkind = "rewrite"\nprefix = "t"\n')
    assert wire.c2s("PUB a r 1\nx") == b"PUB t.a t.r 1\r\nx\r\n" * 3


def test_copies_share_the_delay() -> None:
    wire = Wire(RULE + '[[rules]]\nname = "l"\nkind = "latency"\ndelay = "1s"\nop = "PUB"\n')
    decision = wire.decide(C2S, "PUB a 1\nx")
    assert decision is not None
    assert (len(decision.out or ()), decision.until) == (3, 10**9)
