"""Rule indexes: clauses for the scanner, candidates for a frame, and caches that do not grow."""

from __future__ import annotations

from natsproxy.rules import bounded_cache
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_index import RuleIndex, joined
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, S2C, Op


def planned(*tables: dict[str, object]) -> RuleIndex:
    rules = parse_rules([{"name": f"r{n}", "kind": "drop", **table} for n, table in enumerate(tables)], KINDS)
    return RuleChain(rules).index(())


def test_rules_are_found_in_file_order() -> None:
    index = planned({"subject": "a.>"}, {}, {"subject": "a.b"}, {"subject": "x"})
    assert index.candidates(C2S, Op.PUB, b"a.b") == (0, 1, 2)
    assert index.candidates(C2S, Op.PUB, b"x") == (1, 3)
    assert index.candidates(C2S, Op.PING, b"") == ()


def test_exceptions_are_left_out() -> None:
    index = planned({"subject": "a.>", "unless": "a.x"}, {"unless": "a.>"})
    assert index.candidates(C2S, Op.PUB, b"a.b") == (0,)
    assert index.candidates(C2S, Op.PUB, b"a.x") == ()
    assert index.candidates(C2S, Op.PUB, b"b") == (1,)


def test_a_subject_with_an_empty_token_matches_no_pattern() -> None:
    index = planned({"subject": ">"}, {})
    assert index.candidates(C2S, Op.PUB, b"a..b") == (1,)


def test_stages_come_in_order_each_way() -> None:
    index = planned({"kind": "deny", "subject": "a"}, {"kind": "latency", "delay": "1s", "op": "PUB"})
    assert [rule.kind for rule in index.rules[C2S]] == ["latency", "deny"]
    assert [rule.kind for rule in index.rules[S2C]] == ["deny", "latency"]


def test_many_rules_are_few_clauses() -> None:
    index = planned(*(dict[str, object](subject=f"a.{n}") for n in range(500)))
    assert [len(interest.clauses) for interest in index.interest] == [2, 1]


def test_joining_keeps_what_differs() -> None:
    clauses = [
        Clause(1, Need.LINE, (b"a",)),
        Clause(1, Need.LINE, (b"b",)),
        Clause(1, Need.PAYLOAD, (b"a",)),
        Clause(1, Need.LINE, None, (b"c",)),
        Clause(1, Need.LINE),
    ]
    assert joined(clauses) == (
        Clause(1, Need.LINE, (b"a", b"b")),
        Clause(1, Need.PAYLOAD, (b"a",)),
        Clause(1, Need.LINE, None, (b"c",)),
        Clause(1, Need.LINE),
    )


def test_caches_are_bounded() -> None:
    index = planned({"subject": "a.*"})
    for n in range(2 * bounded_cache.MAX_ENTRIES + 5):
        index.candidates(C2S, Op.PUB, b"a.%d" % n)
    assert len(index._caches[C2S]) <= bounded_cache.MAX_ENTRIES
    known = len(index._caches[C2S])
    assert index.candidates(C2S, Op.PUB, b"a." + b"x" * bounded_cache.MAX_KEY_BYTES) == (0,)
    assert len(index._caches[C2S]) == known


def test_rules_that_drop_or_add_deliveries_are_known() -> None:
    assert planned({"subject": "a.b"}).alters_delivery
    assert not planned({"op": "PUB"}).alters_delivery
    assert planned({"role": "publish-ack"}).alters_delivery
    assert planned({"kind": "answer", "body": "x"}).alters_delivery
    assert planned({"kind": "deny", "subject": "a"}).alters_delivery
    assert not planned({"kind": "deny", "subject": "a", "op": "PUB"}).alters_delivery
