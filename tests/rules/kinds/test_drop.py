"""Dropped frames leave the stream whole."""

from __future__ import annotations

from natsproxy.wire.ops import C2S
from tests.rules.kit import Wire


def test_a_dropped_publish_still_earns_its_ok() -> None:
    decision = Wire('[[rules]]\nname = "r"\nkind = "drop"\nop = "PUB"\n').decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert (decision.out, decision.ok, decision.answer) == ((), True, b"")


def test_pings_can_be_lost() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "drop"\nop = "PING"\ndirection = "s2c"\n')
    assert wire.s2c("PING") == b""
    assert wire.c2s("PING") == b"PING\r\n"


def test_messages_are_the_default() -> None:
    wire = Wire('[[rules]]\nname = "r"\nkind = "drop"\n')
    assert wire.c2s("SUB a 1") == b"SUB a 1\r\n"
    assert wire.s2c("MSG a 1 0\n") == b""
