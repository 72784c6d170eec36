"""Plans: what is looked for, what is found, and that caches do not grow."""

from __future__ import annotations

from natsproxy.rules import memo
from natsproxy.rules.chain import RuleChain
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.plan import Plan, joined
from natsproxy.rules.spec import parse_rules
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Op


def planned(*tables: dict[str, object]) -> Plan:
    rules = parse_rules([{"name": f"r{n}", "kind": "drop", **table} for n, table in enumerate(tables)], KINDS)
    return RuleChain(rules).plan(tuple(range(len(rules))))


def test_rules_are_found_in_file_order() -> None:
    plan = planned({"subject": "a.>"}, {}, {"subject": "a.b"}, {"subject": "x"})
    assert plan.candidates(C2S, Op.PUB, b"a.b") == (0, 1, 2)
    assert plan.candidates(C2S, Op.PUB, b"x") == (1, 3)
    assert plan.candidates(C2S, Op.PING, b"") == ()


def test_exceptions_are_left_out() -> None:
    plan = planned({"subject": "a.>", "unless": "a.x"}, {"unless": "a.>"})
    assert plan.candidates(C2S, Op.PUB, b"a.b") == (0,)
    assert plan.candidates(C2S, Op.PUB, b"a.x") == ()
    assert plan.candidates(C2S, Op.PUB, b"b") == (1,)


def test_a_subject_with_an_empty_token_matches_no_pattern() -> None:
    plan = planned({"subject": ">"}, {})
    assert plan.candidates(C2S, Op.PUB, b"a..b") == (1,)


def test_stages_come_in_order_each_way() -> None:
    plan = planned({"kind": "deny", "subject": "a"}, {"kind": "latency", "delay": "1s", "op": "PUB"})
    assert [rule.kind for rule in plan.rules[C2S]] == ["latency", "deny"]
    assert [rule.kind for rule in plan.rules[S2C]] == ["deny", "latency"]


def test_many_rules_are_few_clauses() -> None:
    plan = planned(*(dict[str, object](subject=f"a.{n}") for n in range(500)))
    assert [len(interest.clauses) for interest in plan.interest] == [2, 1]


def test_joining_keeps_what_differs() -> None:
    clauses = [Clause(1, Need.LINE, (b"a",)), Clause(1, Need.LINE, (b"b",)), Clause(1, Need.PAYLOAD, (b"a",)),
               Clause(1, Need.LINE, None, (b"c",)), Clause(1, Need.LINE)]  # fmt: skip
    assert joined(clauses) == (
        Clause(1, Need.LINE, (b"a", b"b")),
        Clause(1, Need.PAYLOAD, (b"a",)),
        Clause(1, Need.LINE, None, (b"c",)),
        Clause(1, Need.LINE),
    )


def test_caches_are_bounded() -> None:
    plan = planned({"subject": "a.*"})
    for n in range(2 * memo.MOST + 5):
        plan.candidates(C2S, Op.PUB, b"a.%d" % n)
    assert len(plan._caches[C2S]) <= memo.MOST
    known = len(plan._caches[C2S])
    assert plan.candidates(C2S, Op.PUB, b"a." + b"x" * memo.LONGEST) == (0,)
    assert len(plan._caches[C2S]) == known


def test_rules_that_drop_or_add_deliveries_are_known() -> None:
    assert planned({"subject": "a.b"}).alters_delivery
    assert not planned({"op": "PUB"}).alters_delivery
    assert planned({"role": "publish-ack"}).alters_delivery
    assert planned({"kind": "answer", "body": "x"}).alters_delivery
    assert planned({"kind": "deny", "subject": "a"}).alters_delivery
    assert not planned({"kind": "deny", "subject": "a", "op": "PUB"}).alters_delivery
