"""A reordered frame is put aside for so many others or so long."""

from __future__ import annotations

from natsproxy.wire.ops import C2S
from tests.rules.kit import MS, Wire


def test_it_waits_for_others_but_not_for_ever() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "reorder"\nby = 3\nwithin = "20ms"\n', now=5 * MS)
    decision = wire.decide(C2S, "PUB a 1\nx")
    assert decision is not None
    assert (decision.out, decision.defer, decision.until) == (None, 3, 25 * MS)
