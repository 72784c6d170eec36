"""Headers are set and removed, and both lengths mended."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.connect import Connect
from tests.rules.kit import FakeView, Wire


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "headers"', *lines, ""])


def wire(*lines: str, headers: bool = True) -> Wire:
    return Wire(rule(*lines), view=FakeView(connect=Connect(headers=headers)))


def test_a_plain_frame_becomes_one_with_headers() -> None:
    out = wire('set = { A = "b" }').c2s("PUB s r 1\nx")
    assert out == b"HPUB s r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"


def test_a_client_without_headers_gets_none() -> None:
    assert wire('set = { A = "b" }', headers=False).c2s("PUB s 1\nx") == b"PUB s 1\r\nx\r\n"


def test_the_last_header_gone_leaves_a_plain_frame() -> None:
    raw = b"HMSG s 1 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
    assert wire('remove = "A"').s2c(raw) == b"MSG s 1 1\r\nx\r\n"


def test_other_headers_keep_their_bytes() -> None:
    raw = b"HMSG s 1 25 26\r\nNATS/1.0\r\nA: b\r\nc:  d\r\n\r\nx\r\n"
    out = wire('remove = "A"', 'set = { E = "f" }').s2c(raw)
    assert out == b"HMSG s 1 25 26\r\nNATS/1.0\r\nc:  d\r\nE: f\r\n\r\nx\r\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [("", "it needs 'set' or 'remove'"), ('set = { "a b" = "c" }', "set is wrong: .* not a header name")],
)
def test_impossible_headers_are_refused(line: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wire(line)
