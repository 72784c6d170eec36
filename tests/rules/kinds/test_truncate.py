"""Truncation mends the lengths."""

from __future__ import annotations

from tests.rules.kit import Wire

RULE = '[[rules]]\nname = "r"\nkind = "truncate"\nkeep = 3\n'


def test_the_body_is_cut_and_the_length_mended() -> None:
    assert Wire(RULE).c2s("PUB a r 5\nabcde") == b"PUB a r 3\r\nabc\r\n"


def test_headers_stay_whole() -> None:
    raw = b"HMSG a 1 12 17\r\nNATS/1.0\r\n\r\nabcde\r\n"
    assert Wire(RULE).s2c(raw) == b"HMSG a 1 12 15\r\nNATS/1.0\r\n\r\nabc\r\n"


def test_a_short_payload_passes_byte_for_byte() -> None:
    assert Wire(RULE).c2s(b"pub  a 003\r\nabc\r\n") == b"pub  a 003\r\nabc\r\n"
