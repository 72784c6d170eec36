"""The benchmark of fairness has a row for each kind of rule and each policy for payloads."""

from __future__ import annotations

from natsproxy.capture.filter.recording_filter import PayloadPolicy
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.benchmarks.bench_fairness import ROWS, RULES


def test_rows_are_complete_and_right() -> None:
    assert RULES.keys() <= KINDS.keys()
    for row in ROWS.values():
        if row.rules:
            load(row.rules, KINDS)
    written = {word for row in ROWS.values() for word in row.options if word.startswith(">=")}
    assert {PayloadPolicy.parse(policy).action for policy in written} == {"drop", "truncate", "hash"}
