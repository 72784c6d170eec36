"""New connections are turned away, open ones are left alone."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.rules.kit import FakeView, S, Wire


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "refuse"', *lines, ""])


def test_the_first_two_connections_of_the_proxy() -> None:
    chain = RuleChain(load(rule('per = "proxy"', "first = 2", 'how = "close"'), KINDS))
    openings = [chain.bind(FakeView(ordinal=n), None, 0).opening for n in range(1, 4)]
    assert openings == ["close", "close", "serve"]


def test_reset_is_the_default() -> None:
    assert Wire(rule()).rules.opening == "refuse"


def test_open_connections_are_left_alone() -> None:
    wire = Wire("rules = []")
    wire.rebind(rule())
    assert wire.rules.opening == "serve"
    assert wire.rules.due(0)[1] is None


def test_the_connections_of_a_time() -> None:
    chain = RuleChain(load(rule('between = ["1s", "2s"]', 'per = "proxy"', "limit = 1"), KINDS))
    chain.begin(0)
    openings = [chain.bind(FakeView(ordinal=n), None, n * S // 2).opening for n in range(1, 5)]
    assert openings == ["serve", "refuse", "serve", "serve"]


def test_open_connections_do_not_count() -> None:
    wire = Wire("rules = []")
    wire.rebind(rule('per = "proxy"', "first = 1"))
    wire.rebind()
    assert wire.rules.fired == []
    assert wire.chain.bind(FakeView(ordinal=2), None, 0).opening == "refuse"


def test_nobody_has_a_name_yet() -> None:
    with pytest.raises(ConfigError, match="client can only name address and ordinal"):
        Wire(rule('client = { name = "x" }'))
