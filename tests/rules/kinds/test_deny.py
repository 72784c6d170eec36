"""The short form of a permission map."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.wire.ops import C2S
from tests.rules.kit import Wire


def wire(*lines: str) -> Wire:
    return Wire("\n".join(["[[rules]]", 'name = "r"', 'kind = "deny"', *lines, ""]))


def test_publishing_and_subscribing_are_denied() -> None:
    found = wire('subject = "a.>"')
    assert found.c2s("PUB a.b 0\n") == b""
    assert found.c2s("SUB a.b 1") == b""
    assert found.c2s("SUB > 2") == b"SUB > 2\r\n"
    assert found.s2c("MSG a.b 2 0\n") == b""


def test_one_of_them_can_be_meant() -> None:
    found = wire('subject = "a"', 'op = "SUB"')
    assert found.c2s("PUB a 0\n") != b""
    assert found.c2s("SUB a 1") == b""


def test_a_gate_counts_what_it_would_deny() -> None:
    found = wire('subject = "a"', "after = 1", "limit = 1")
    outs = [found.c2s("PUB b 0\n"), *(found.c2s("PUB a 0\n") for _ in range(3))]
    assert [out == b"" for out in outs] == [False, False, True, False]
    assert found.decide(C2S, "PUB a 0\n") is None


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((), "it needs 'subject'"),
        (('subject = "a"', 'unless = "b"'), "unless has no meaning"),
        (('subject = "a"', 'op = "MSG"'), "op must be PUB, HPUB or SUB"),
    ],
)
def test_settings_that_cannot_be_denied_are_refused(lines: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wire(*lines)
