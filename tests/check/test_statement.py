"""Statements are plain data."""

from __future__ import annotations

import json

from natsproxy.check.statement import ProofFrame, Statement

PROOF = ProofFrame("x.ncap", "1", "s2c", 4, 7_000, "MSG a 1 0", "lose")


def test_the_facts_of_a_statement_are_json() -> None:
    others = (PROOF._replace(rule=rule) for rule in ("proxy", "unsent", ""))
    made = Statement("stored_twice", "found", "it was", (PROOF, *others), ("worker",))
    facts = json.loads(json.dumps(made.facts()))
    assert facts["frames"][0] == PROOF._asdict()
    assert {**facts, "frames": []} == {
        "check": "stored_twice",
        "verdict": "found",
        "sentence": "it was",
        "frames": [],
        "clients": ["worker"],
        "rules": ["lose"],
    }


def test_a_statement_that_cannot_say_is_no_finding() -> None:
    assert not Statement("stored_twice", "cannot say", "the recording does not tell: why").found
    assert Statement("stored_twice", "found", "it was").found
