"""Headers are set and removed, and both lengths mended."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.connect import Connect
from natsproxy.wire.ops import C2S
from tests.rules.kit import FakeView, Wire, parse


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
    [
        ("", "it needs 'set' or 'remove'"),
        ('set = { "a b" = "c" }', "set is wrong: .* not a header name"),
        ('remove = "a:b"', "remove is wrong: 'a:b' is not a header name"),
    ],
)
def test_impossible_headers_are_refused(line: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wire(line)


MANY = """
[[rules]]
name = "{n}-set"
kind = "headers"
set = {{ A = "{n}" }}

[[rules]]
name = "{n}-again"
kind = "headers"
set = {{ A = "{n}" }}

[[rules]]
name = "{n}-absent"
kind = "headers"
remove = "C"
"""
RAW = b"HPUB s 24 34\r\nNATS/1.0\r\nA: b\r\nB: c\r\n\r\n0123456789\r\n"


def many(text: str) -> Wire:
    return Wire(text, view=FakeView(connect=Connect(headers=True)))


def test_changes_of_several_rules_add_up_and_those_without_effect_do_not_fire() -> None:
    decision = many(MANY.format(n=1) + MANY.format(n=2)).decide(C2S, RAW)
    assert decision is not None
    assert decision.out == (RAW.replace(b"A: b", b"A: 2"),)
    assert [firing.rule for firing in decision.firings] == ["1-set", "2-set"]
    assert decision.cause == "2-set"


def test_no_change_of_several_rules_leaves_the_frame_alone() -> None:
    assert many(MANY.format(n="b")).decide(C2S, RAW) is None


def test_a_rule_between_two_changes_sees_the_first_and_the_second_sees_its_frame() -> None:
    between = '[[rules]]\nname = "cut"\nkind = "truncate"\nkeep = 4\n'
    last = '[[rules]]\nname = "gone"\nkind = "headers"\nremove = ["A", "B"]\n'
    assert many(MANY.format(n=1) + between).c2s(RAW) == (
        b"HPUB s 24 28\r\nNATS/1.0\r\nA: 1\r\nB: c\r\n\r\n0123\r\n"
    )
    assert many(MANY.format(n=1) + between + last).c2s(RAW) == b"PUB s 4\r\n0123\r\n"
    assert many(last + between + MANY.format(n=1)).c2s(RAW) == (
        b"HPUB s 18 22\r\nNATS/1.0\r\nA: 1\r\n\r\n0123\r\n"
    )


def test_rules_on_a_large_block_read_it_once_and_in_steps() -> None:
    lines = b"k: v\r\n" * 50_000
    block = b"NATS/1.0\r\n" + lines + b"\r\n"
    raw = b"HPUB s %d %d\r\n%s\r\n" % (len(block), len(block), block)
    few, more = ("".join(MANY.format(n=n) for n in range(count)) for count in (1, 50))
    counts = [sum(1 for _ in many(text).rules.steps(C2S, parse(C2S, raw), 0)) for text in (few, more)]
    assert counts[0] > 50
    assert counts[1] == counts[0] + 3 * 49, "one step for each further rule"
    assert many(more).c2s(raw).endswith(lines + b"A: 49\r\n\r\n\r\n")
