"""Faults by name are the kinds of rules, one function each."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from natsproxy import testing
from natsproxy.errors import ConfigError
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.testing import Fault, TestProxy, cassette, deny, drop, faults, latency


def test_every_kind_of_rule_has_its_function() -> None:
    for kind, known in KINDS.items():
        make = getattr(faults, kind)
        assert make() == Fault(kind, {})
        documented = inspect.getdoc(make)
        assert documented is not None
        assert all(setting.name in documented for setting in known.settings)
    assert {name for name, one in vars(faults).items() if getattr(one, "__name__", "") in KINDS} == set(KINDS)


def test_own_settings_come_in_order_all_else_by_name() -> None:
    fault = latency("200ms", subject="orders.>", first=2)
    assert fault == Fault("latency", {"delay": "200ms", "subject": "orders.>", "first": 2})
    assert fault.table("slow", {"first": 3}) == {
        "delay": "200ms",
        "subject": "orders.>",
        "first": 3,
        "name": "slow",
        "kind": "latency",
    }


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: drop("x"), r"drop has 0 settings of its own \(none\)"),
        (lambda: latency("1s", delay="2s"), "latency: delay is given twice"),
    ],
)
def test_too_many_and_twice_given_settings_are_refused(make: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        make()  # type: ignore[operator]


def test_a_fault_without_settings_is_a_rule() -> None:
    assert deny().table("no", {"subject": "a"}) == {"subject": "a", "name": "no", "kind": "deny"}


def test_the_examples_of_the_documentation_are_faults() -> None:
    texts = [inspect.getdoc(one) or "" for one in (faults, TestProxy.fault, TestProxy, cassette, testing)]
    examples = [
        *re.findall(r"^ +(\w+\(.*?\)) {2,}", texts[0], re.MULTILINE),
        *(f"call({found})" for text in texts for found in re.findall(r"\.fault\((\w.*)\)", text)),
    ]
    assert len(examples) >= 9
    for number, example in enumerate(examples):
        made = eval(example, {**vars(faults), "call": called})
        parse_rules([made.table(f"example {number}", {})], KINDS)


def called(fault: Fault | str, **settings: Any) -> Fault:
    """Make a rule of the arguments, as `.fault(...)` does."""
    return (
        Fault(fault, settings)
        if isinstance(fault, str)
        else Fault(fault.kind, {**fault.settings, **settings})
    )
