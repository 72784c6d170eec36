"""Connections end at a frame, at a time, or at once."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.rules.model.verdicts import Close, Cut
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import S, Wire


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "close"', *lines, ""])


def test_it_ends_at_the_frame() -> None:
    decision = Wire(rule('op = "CONNECT"')).decide(C2S, "CONNECT {}")
    assert decision is not None
    assert (decision.close, decision.out) == (Close("close"), ())


def test_the_greeting_and_no_more() -> None:
    decision = Wire(rule('op = "INFO"', 'at = "after"')).decide(S2C, b'INFO {"a":1} \r\n')
    assert decision is not None
    assert (decision.close, decision.out) == (Close("close", at=Cut.AFTER), None)


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


@pytest.mark.parametrize(
    ("cut", "frame", "part"),
    [
        (Cut.BEFORE, b"PUB a 4\r\nabcd\r\n", b""),
        (Cut.HEAD, b"PUB a 4\r\nabcd\r\n", b"PUB "),
        (Cut.HEAD, b"PING\r\n", b"PIN"),
        (Cut.PAYLOAD, b"PUB a 4\r\nabcd\r\n", b"PUB a 4\r\nab"),
        (Cut.PAYLOAD, b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nab\r\n", b"HPUB a 12 14\r\nNATS/1."),
        (Cut.PAYLOAD, b"PUB a 0\r\n\r\n", b"PUB a 0\r\n"),
        (Cut.PAYLOAD, b"PING\r\n", b"PIN"),
        (Cut.AFTER, b"PUB a 4\r\nabcd\r\n", b"PUB a 4\r\nabcd\r\n"),
    ],
)
def test_the_part_that_the_receiver_gets(cut: Cut, frame: bytes, part: bytes) -> None:
    assert cut.part(frame) == part


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (['at = "after"'], "at = 'after' needs a frame: name an op, a subject or a role"),
        (['op = "PING"', 'at = "payload"'], "at = 'payload' needs frames that have one"),
        (['direction = "s2c"'], "direction = 's2c' alone selects no frame: name an op, a subject or a role"),
        (['op = "PUB"', "deliver = true"], "deliver"),
    ],
)
@pytest.mark.parametrize("kind", ["close", "reset"])
def test_what_would_mislead_is_refused(kind: str, lines: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Wire(rule(*lines).replace('"close"', f'"{kind}"'))
