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
        (('subject = "a"', 'op = "SUB"', 'without = { A = "*" }'), "without selects nothing"),
        (('subject = "a"', 'op = "SUB"', "min_size = 1"), "has no headers and no payload"),
        (("wildcard = 1", "min_size = 1"), "have no headers and no payload"),
        (("wildcard = 1", 'op = "PUB"'), "op can be SUB only"),
    ],
)
def test_settings_that_cannot_be_denied_are_refused(lines: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wire(*lines)


APPROVED = ('subject = "a.>"', 'without = { X-Approved = "T-*" }')


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        pytest.param("X-Approved: T-1\r\n", True, id="as it should be"),
        pytest.param("X-Approved:T-1\r\nX-Approved:\tT-2 \r\n", True, id="twice, with blanks"),
        pytest.param("", False, id="without"),
        pytest.param("X-Approved: no\r\n", False, id="another value"),
        pytest.param("X-Approved: no\r\nX-Approved: T-1\r\n", False, id="another value first"),
        pytest.param("X-Approved: T-1\r\nX-Approved: no\r\n", False, id="another value last"),
        pytest.param("x-approved: T-1\r\n", False, id="letter case"),
        pytest.param("X-Approved : T-1\r\n", False, id="blank before the colon"),
        pytest.param(" X-Approved: T-1\r\n", False, id="folded into nothing"),
        pytest.param("A: b\r\n X-Approved: T-1\r\n", False, id="folded"),
        pytest.param("X-Approved:\r\n T-1\r\n", False, id="folded value"),
        pytest.param("A: b\r\n\r\nX-Approved: T-1\r\n", False, id="behind the blank line"),
        pytest.param("X-Approved: T-1\r\n\r\nX-Approved: no\r\n", False, id="both sides of it"),
        pytest.param("A: b\rX-Approved: T-1\r\n", False, id="CR alone"),
        pytest.param("X-Approved\0: T-1\r\n", False, id="NUL"),
        pytest.param("X%2DApproved: T-1\r\n", False, id="encoded"),
    ],
)
@pytest.mark.parametrize("version", ["NATS/1.0", "NATS/1.0 503 x", ""], ids=["plain", "status", "no version"])
def test_a_publish_needs_a_header(headers: str, passes: bool, version: str) -> None:
    """A header that not every reader takes for the approval is none."""
    block = f"{version}\r\n" * bool(version) + headers + "\r\n"
    raw = f"HPUB a.b {len(block)} {len(block) + 2}\r\n{block}hi\r\n".encode()
    found = wire(*APPROVED)
    assert (found.c2s(raw) != b"") is passes
    assert found.c2s(raw.replace(b" a.b ", b" b.b ")) != b""


def test_an_approval_is_about_publishing() -> None:
    found = wire(*APPROVED)
    assert found.c2s("PUB a.b 0\n") == b""
    assert found.c2s("SUB a.b 1") != b""
    assert found.s2c("MSG a.b 1 0\n") != b""


def test_a_trace_does_not_go_where_a_publish_needs_a_header() -> None:
    block = "NATS/1.0\r\nNats-Trace-Dest: a.b\r\n\r\n"
    raw = f"HPUB b {len(block)} {len(block)}\r\n{block}\r\n".encode()
    decision = wire(*APPROVED).decide(C2S, raw)
    assert decision is not None
    assert b'Permissions Violation for Publish to "a.b"' in decision.answer


@pytest.mark.parametrize("block", ["Nats-Rollup: all\r\n\r\n", "A: b\r\n\r\nNats-Rollup: all\r\n\r\n"])
def test_a_header_is_denied_wherever_the_server_finds_it(block: str) -> None:
    block = "NATS/1.0\r\n" + block
    raw = f"HPUB a {len(block)} {len(block)}\r\n{block}\r\n".encode()
    found = wire('subject = ">"', 'header = { Nats-Rollup = "*" }')
    assert found.c2s(raw) == b""
    assert found.c2s(raw.replace(b"Rollup", b"Xollup")) != b""


@pytest.mark.parametrize(
    ("sub", "level"),
    [(">", 1), ("*", 1), ("*.a", 1), ("*.>", 1), ("a.>", 2), ("a.*.c", 2), ("a.b.>", 3), ("a.>.x", 2)],
)
def test_wide_subscriptions_are_denied(sub: str, level: int) -> None:
    for queue in ("", " workers"):
        found = wire(f"wildcard = {level}")
        decision = found.decide(C2S, f"SUB {sub}{queue} 1")
        assert decision is not None
        assert decision.answer.startswith(
            f'-ERR \'Permissions Violation for Subscription to "{sub}"'.encode()
        )
        assert level == 1 or wire(f"wildcard = {level - 1}").decide(C2S, f"SUB {sub}{queue} 1") is None


def test_narrow_subscriptions_pass_and_get_all() -> None:
    found = wire("wildcard = 2", 'unless = "_INBOX.>"')
    for sub in ("a.b", "a.b.>", "_INBOX.*", ">a", "a*.b"):
        assert found.decide(C2S, f"SUB {sub} 1") is None, sub
    assert found.decide(C2S, "SUB a.* 2") is not None
    assert found.decide(C2S, "PUB > 0\n") is None
    assert found.s2c("MSG a 1 0\n") != b""


def test_live_subscriptions_that_are_too_wide_end() -> None:
    found = Wire("rules = []")
    for sid, sub in enumerate((">", "a.>", "a.b"), 1):
        found.c2s(f"SUB {sub} {sid}")
    found.rebind('[[rules]]\nname = "r"\nkind = "deny"\nwildcard = 1\n')
    assert [sid for sid, _ in found.rules.revoked] == [b"1"]
