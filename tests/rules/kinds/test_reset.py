"""Connections end with RST."""

from __future__ import annotations

from natsproxy.rules.model.verdicts import Close
from natsproxy.wire.ops import C2S
from tests.rules.kit import Wire

TEXT = '[[rules]]\nname = "r"\nkind = "reset"\n'


def test_at_the_frame_that_the_gate_lets_through() -> None:
    wire = Wire(TEXT + 'op = "PUB"\nafter = 1\n')
    assert wire.decide(C2S, "PUB a 0\n") is None
    decision = wire.decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert decision.close == Close("reset", reset=True)


def test_at_once_without_a_frame() -> None:
    assert Wire(TEXT).rules.due(0)[1] == Close("reset", reset=True)
