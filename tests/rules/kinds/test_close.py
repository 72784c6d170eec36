"""Connections end at a frame, at a time, or at once."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.rules.model.verdicts import Close
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import S, Wire


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "close"', *lines, ""])


def test_it_ends_at_the_frame() -> None:
    decision = Wire(rule('op = "CONNECT"')).decide(C2S, "CONNECT {}")
    assert decision is not None
    assert (decision.close, decision.out) == (Close("close"), ())


def test_the_greeting_and_no_more() -> None:
    decision = Wire(rule('op = "INFO"', "deliver = true")).decide(S2C, b'INFO {"a":1} \r\n')
    assert decision is not None
    assert decision.close == Close("close", b'INFO {"a":1} \r\n')


def test_it_ends_in_time_or_at_once() -> None:
    timed = Wire(rule('between = ["10s"]'))
    assert timed.rules.due(9 * S) == ([], None, 10 * S)
    assert timed.rules.due(10 * S)[1] == Close("close")
    assert Wire(rule()).rules.due(0)[1] == Close("close")


def test_a_rule_that_comes_later_ends_open_connections() -> None:
    wire = Wire("rules = []")
    wire.now = 7 * S
    wire.rebind(rule())
    assert wire.rules.due(7 * S)[1] == Close("close")


def test_only_the_server_s_frames_can_be_delivered_first() -> None:
    with pytest.raises(ConfigError, match="deliver needs a selector of s2c frames"):
        Wire(rule('op = "PUB"', "deliver = true"))
