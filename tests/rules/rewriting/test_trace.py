"""One frame before the rewriter: one count, one firing, draws that differ."""

from __future__ import annotations

from natsproxy.rules.interface import Decision
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import Wire


def rule(name: str, *lines: str) -> str:
    return "\n".join(["[[rules]]", f'name = "{name}"', 'kind = "rewrite"', *lines, ""])


def facts(decision: Decision | None) -> list[tuple[str, str, int, str, str]]:
    assert decision is not None
    return [(f.rule, f.action, f.m, f.subject, f.detail) for f in decision.firings]


def test_a_frame_is_one_firing_that_names_all_that_moved() -> None:
    wire = Wire(rule("a", 'from = "a.>"', 'to = "x.>"') + rule("b", 'from = "b.>"', 'to = "y.>"'))
    assert facts(wire.decide(C2S, "PUB a.1 b.1 0\n")) == [
        ("a", "rewrite", 1, "a.1", "a.1 -> x.1, b.1 -> y.1")
    ]
    assert facts(wire.decide(C2S, "PUB z b.1 0\n")) == [("b", "rewrite", 1, "z", "b.1 -> y.1")]
    assert facts(wire.decide(S2C, "MSG x.1 1 0\n")) == [("a", "rewrite", 1, "a.1", "x.1 -> a.1")]
    assert facts(wire.decide(C2S, "SUB a.* 1")) == [("a", "rewrite", 2, "a.*", "a.* -> x.*")]
    text = "-ERR 'Permissions Violation for Publish to \"y.9\"'"
    assert facts(wire.decide(S2C, text)) == [("b", "rewrite", 1, "", "y.9 -> b.9")]


def test_a_subscription_that_is_refused_is_a_firing_too() -> None:
    wire = Wire(rule("a", 'from = "a.b.*"', 'to = "x.$1"'))
    assert facts(wire.decide(C2S, "SUB a.> 1")) == [("a", "deny", 1, "a.>", "a.> -> nothing")]


def test_an_unmoved_subject_is_counted_and_fires_nothing() -> None:
    wire = Wire(rule("w", 'from = "a"', 'to = [{ to = "b", weight = 50 }]', "two_way = false"))
    found = [wire.decide(C2S, "PUB a 0\n") for _ in range(200)]
    moved = [number for number, decision in enumerate(found, 1) if decision is not None]
    assert [facts(found[number - 1])[0][2] for number in moved] == moved
    assert 60 < len(moved) < 140


def test_the_draws_of_one_frame_differ() -> None:
    wire = Wire(rule("w", 'from = "a"', 'to = "{{random(10)}}.{{random(10)}}"', "two_way = false"))
    made = {wire.c2s("PUB a 0\n").split()[1] for _ in range(300)}
    assert len(made) > 60
    assert any(len(set(subject.split(b"."))) == 2 for subject in made)


def test_other_rules_come_before_it_in_the_report() -> None:
    late = '[[rules]]\nname = "late"\nkind = "latency"\nop = "PUB"\ndelay = "1s"\n'
    decision = Wire(rule("t", 'prefix = "t"') + late).decide(C2S, "PUB a 0\n")
    assert [one[0] for one in facts(decision)] == ["late", "t"]
