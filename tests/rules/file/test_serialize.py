"""Rules become text again, and a chaos run becomes a script that does the same again."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from typing import Any

import pytest

from natsproxy.rules.file.parser import load, parse_rules
from natsproxy.rules.file.serialize import exact_rules, to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S
from tests.rules.kit import Wire

TABLE = {
    "name": 'odd "name"\t\x7f',
    "kind": "latency",
    "probability": 0.1,
    "per": "proxy",
    "overtake": True,
    "client": {"name": "a b", "ordinal": 3},
    "header": {"X Y": "*"},
    "subject": ["a", "b.>"],
    "only": {},
}


def test_tables_survive_the_way_to_text_and_back() -> None:
    assert tomllib.loads(to_toml([TABLE, {"name": "x"}])) == {"rules": [TABLE, {"name": "x"}]}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_example_does(name: str) -> None:
    rules = load(KINDS[name].example, KINDS)
    again = load(to_toml(rule.table for rule in rules), KINDS)
    assert [rule.content for rule in again] == [rule.content for rule in rules]


CHAOS = """
[[rules]]
name = "lossy"
kind = "drop"
op = "PUB"
probability = 0.2
[[rules]]
name = "rot"
kind = "corrupt"
op = "PUB"
every = 3
limit = 5
[[rules]]
name = "slow"
kind = "latency"
op = "PUB"
delay = { distribution = "normal", mean = "1s", stddev = "1s" }
"""


def run(wire: Wire, frames: int = 100) -> tuple[list[Any], list[dict[str, Any]]]:
    found = [wire.decide(C2S, "PUB a 5\nhello") for _ in range(frames)]
    outcome = [(d.out, d.until) if d else None for d in found]
    return outcome, [asdict(firing) for d in found if d for firing in d.firings]


def test_a_script_does_the_same_again() -> None:
    before = Wire(CHAOS, seed=11)
    outcome, firings = run(before)
    tables = exact_rules(before.chain.rules, firings)
    assert [sorted(table) for table in tables] == [
        ["kind", "name", "only", "op"],
        ["bytes", "kind", "name", "only", "op"][1:],
        ["delay", "kind", "name", "op"],
    ]
    assert run(Wire(to_toml(tables), seed=11))[0] == outcome


def test_one_firing_can_be_taken_out() -> None:
    before = Wire(CHAOS, seed=11)
    outcome, firings = run(before)
    tables = exact_rules(before.chain.rules, firings)
    gone = tables[0]["only"]["c2s app"].pop(0)
    again = run(Wire(to_toml(tables), seed=11))[0]
    assert outcome[gone - 1][0] == ()
    assert [n for n, (a, b) in enumerate(zip(outcome, again, strict=True), 1) if a != b] == [gone]


def test_a_rule_that_never_fired_never_fires() -> None:
    (table,) = exact_rules(parse_rules([{"name": "r", "kind": "drop", "limit": 1}], KINDS), [])
    assert table == {"name": "r", "kind": "drop", "only": {}}
    assert Wire(to_toml([table])).c2s("PUB a 0\n") != b""
