"""The rules of one connection: large frames, counts and firings; the rest is in `test_chain`."""

from __future__ import annotations

import gc
import weakref

from natsproxy.rules.interface import Decision
from natsproxy.wire.ops import C2S, Direction
from tests.rules.kit import Wire, parse


def cut(wire: Wire, raw: str, direction: Direction = C2S) -> Decision | None:
    """Decide on a frame of which only the control line is here."""
    frame = parse(direction, raw)
    frame = frame._replace(end=frame.line_end, missing=frame.end - frame.line_end, short=True)
    return wire.rules.decide(direction, frame, 0)


def rule(kind: str, *lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', f'kind = "{kind}"', *lines, ""])


def test_a_frame_that_is_too_large_passes_with_a_firing() -> None:
    decision = cut(Wire(rule("corrupt", 'op = "PUB"')), "PUB a 5\nhello")
    assert decision is not None
    assert decision.out is None
    (firing,) = decision.firings
    assert (firing.action, firing.detail) == ("passed", "a frame of 16 bytes is larger than the rule buffer")


def test_a_rule_that_needs_only_the_line_acts_on_any_size() -> None:
    decision = cut(Wire(rule("drop", 'op = "PUB"')), "PUB a 5\nhello")
    assert decision is not None
    assert decision.out == ()


def test_a_denial_needs_the_line_only() -> None:
    decision = cut(Wire(rule("deny", 'subject = "a"')), "PUB a 5\nhello")
    assert decision is not None
    assert decision.answer.startswith(b"-ERR")


def test_a_large_frame_is_rewritten_at_its_line() -> None:
    decision = cut(Wire(rule("rewrite", 'prefix = "t"')), "PUB a 5\nhello")
    assert decision is not None
    assert decision.out == (b"PUB t.a 5\r\n",)


def test_a_frame_that_was_dropped_is_not_reported_again() -> None:
    text = rule("drop", 'op = "PUB"') + rule("corrupt", 'op = "PUB"').replace('"r"', '"s"')
    decision = cut(Wire(text), "PUB a 5\nhello")
    assert decision is not None
    assert [firing.rule for firing in decision.firings] == ["r"]


def test_counts_go_on_when_the_name_becomes_known() -> None:
    wire = Wire(rule("drop", 'op = "PUB"', "after = 1"))
    assert wire.c2s("PUB a 0\n") != b""
    wire.view.key = "app/2"
    wire.rebind()
    decision = wire.decide(C2S, "PUB a 0\n")
    assert decision is not None
    assert [(firing.key, firing.m) for firing in decision.firings] == [("app/2", 2)]


def test_rules_that_are_replaced_leave_no_trace_at_a_reply_subject_in_use() -> None:
    """Clients use one inbox for many requests, and rules change many times meanwhile."""
    tenant = '[[rules]]\nname = "t"\nkind = "rewrite"\nprefix = "t"\njetstream = true\n'
    wire = Wire(tenant)
    for number in range(1, 4):
        wire.rebind(tenant + rule("latency", 'role = "api-reply"', f'delay = "{number}ms"'))
        wire.c2s("PUB $JS.API.INFO _INBOX.1 0\n")
        assert len(wire.rules._requests.waiters(b"_INBOX.1")) == 2  # the rule, and the rewriting of answers
    before = weakref.ref(wire.chain.index((0, 1)).rewriter)
    wire.rebind(tenant)
    gc.collect()
    assert before() is None
    answer = '{"type":"x","subjects":["t.a"]}'
    assert b'["a"]' in wire.s2c(f"MSG _INBOX.1 1 {len(answer)}\n{answer}")
