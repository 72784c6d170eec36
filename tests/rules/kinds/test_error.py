"""An -ERR in the place of a frame, ahead of one, or out of the blue."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import S, Wire


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "error"', *lines, ""])


STALE = 'text = "Stale Connection"'
RAW = b"-ERR 'Stale Connection'\r\n"


def test_it_takes_the_place_of_a_client_s_frame() -> None:
    decision = Wire(rule(STALE, "close = false", 'op = "PUB"')).decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert (decision.out, decision.answer, decision.close) == ((), RAW, None)


def test_it_goes_ahead_of_a_server_s_frame() -> None:
    out = Wire(rule(STALE, "close = false", 'op = "MSG"')).s2c("MSG a 1 0\n")
    assert out == RAW + b"MSG a 1 0\r\n\r\n"


def test_the_connection_closes_where_a_server_would_close_it() -> None:
    decision = Wire(rule(STALE, 'op = "PUB"')).decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert decision.close is not None
    assert decision.close.raw == RAW


def test_it_comes_when_its_window_begins() -> None:
    wire = Wire(rule(STALE, 'between = ["5s"]'))
    assert wire.rules.conditions(S2C, 0) == (None, 5 * S)
    assert wire.rules.due(4 * S) == ([], None, 5 * S)
    frames, close, again = wire.rules.due(5 * S)
    assert (frames, again) == ([], None)
    assert close is not None
    assert close.raw == RAW
    assert [firing.rule for firing in wire.rules.fired] == ["r"]


def test_an_invented_text_must_be_meant() -> None:
    with pytest.raises(ConfigError, match="is not one that nats-server sends"):
        Wire(rule('text = "Slow Consumer"'))
    Wire(rule('text = "Slow Consumer"', "unknown = true"))


def test_a_direction_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="direction = 'c2s' alone selects no frame"):
        Wire(rule('text = "Stale Connection"', 'direction = "c2s"'))
