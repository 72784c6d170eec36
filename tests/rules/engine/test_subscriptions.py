"""What permission rules make of SUBs is looked up: it is what each rule says alone, at the cost of a few."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol.permissions import Permissions, parse_permissions
from natsproxy.protocol.subjects import is_valid_strict
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.engine.subscription_check import LEAST
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.interface import Subscription
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.kinds.permissions import PermissionMap
from natsproxy.rules.model.rule import Hit
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Op
from tests.rules.kit import FakeView, parse

TOKENS = st.sampled_from(["a", "b", "*", ">", "*x", ""])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=3).map(".".join)
PATTERNS = SUBJECTS.filter(lambda pattern: is_valid_strict(pattern.encode()))
QUEUES = st.sampled_from(["", "", "q", "r"])
ENTRIES = st.lists(
    st.tuples(PATTERNS, QUEUES).map(lambda entry: " ".join(entry).strip()), min_size=1, max_size=3
)
MAPS = st.lists(
    st.fixed_dictionaries({}, optional={"allow": ENTRIES, "deny": ENTRIES}).filter(bool),
    min_size=1,
    max_size=4,
)
SUBS = st.lists(st.tuples(SUBJECTS.filter(bool), QUEUES, st.integers(1, 3)), min_size=1, max_size=6)


def chain(maps: list[dict[str, Any]], previous: RuleChain | None = None) -> RuleChain:
    tables = [{"name": f"r{n}", "kind": "permissions", "subscribe": table} for n, table in enumerate(maps)]
    return RuleChain(parse_rules(tables, KINDS), previous=previous)


class OneByOne:
    """Each map by itself, with a filter of its own."""

    def __init__(self, maps: list[dict[str, Any]]) -> None:
        self.maps: list[Permissions] = [parse_permissions({"subscribe": table}) for table in maps]
        self.filtering = [False] * len(self.maps)

    def refuses(self, subject: bytes, queue: bytes) -> bool:
        """Take a SUB."""
        allowed = [permissions.can_subscribe(subject, queue) for permissions in self.maps]
        for at, permissions in enumerate(self.maps):
            self.filtering[at] |= allowed[at] and permissions.arms_filter(subject, queue)
        return not all(allowed)

    def keeps(self, subject: bytes, queue: bytes) -> bool:
        """Take a message."""
        return any(
            filtering and permissions.delivery_denied(subject, queue)
            for filtering, permissions in zip(self.filtering, self.maps, strict=True)
        )


def check_deliveries(rules: RuleEngine, view: FakeView, expected: OneByOne) -> None:
    for sid, sub in view.subs.items():
        for subject in (b"a", b"b", b"a.b", b"b.a", b"a.*x", b"a.b.a"):
            frame = parse(S2C, encode.message(Op.MSG, subject, sid=sid))
            decision = rules.decide(S2C, frame, 0)
            assert (decision is not None) is expected.keeps(subject, sub.queue), subject


@given(MAPS, SUBS)
def test_subscriptions_are_judged_as_by_each_map_alone(
    maps: list[dict[str, Any]], subs: list[tuple[str, str, int]]
) -> None:
    view, expected = FakeView(), OneByOne(maps)
    rules = chain(maps).bind(view, None, 0)
    for subject, queue, number in subs:
        sid = b"%d" % number
        raw = encode.sub(subject.encode(), sid, queue.encode())
        view.subs.setdefault(sid, Subscription(sid, subject.encode(), queue.encode(), subject.encode()))
        decision = rules.decide(C2S, parse(C2S, raw), 0)
        assert (decision is not None) is expected.refuses(subject.encode(), queue.encode())
        if decision is not None and view.subs[sid].subject == subject.encode():
            del view.subs[sid]
    check_deliveries(rules, view, expected)


@given(MAPS, MAPS, SUBS)
def test_live_subscriptions_are_judged_so_by_rules_that_come(
    before: list[dict[str, Any]], maps: list[dict[str, Any]], subs: list[tuple[str, str, int]]
) -> None:
    view, expected = FakeView(), OneByOne(maps)
    old = chain(before)
    rules = old.bind(view, None, 0)
    for number, (subject, queue, _) in enumerate(subs):
        sid, name, group = b"%d" % number, subject.encode(), queue.encode()
        view.subs[sid] = Subscription(sid, name, group, name)
        rules.decide(C2S, parse(C2S, encode.sub(name, sid, group)), 0)
    new = chain(maps)
    rules = new.bind(view, rules, 0)
    refused = [sid for sid, sub in view.subs.items() if expected.refuses(sub.subject, sub.queue)]
    assert [sid for sid, _ in rules.revoked] == refused
    for sid in refused:
        del view.subs[sid]
    check_deliveries(rules, view, expected)


@pytest.mark.parametrize("subject", ["s.1.x", "s.*.x", "s.>"])
def test_the_cost_of_a_sub_is_that_of_the_rules_that_may_deny_it(
    subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def act(action: PermissionMap, frame: Frame, hit: Hit) -> object:
        asked.append(action)
        return original(action, frame, hit)

    original = PermissionMap.act
    monkeypatch.setattr(PermissionMap, "act", act)
    tables = [{"name": f"r{n}", "kind": "deny", "subject": [f"no.{n}.x", f"no.{n}.*"]} for n in range(1000)]
    tables.append({"name": "yes", "kind": "deny", "subject": "s.*.x"})
    view = FakeView()
    rules = RuleChain(parse_rules(tables, KINDS)).bind(view, None, 0)
    assert not rules._states, "no state before a rule is asked"
    rules.decide(C2S, parse(C2S, f"SUB {subject} 1"), 0)
    assert len(asked) == (subject != "s.>")
    assert len(rules._states) == len(asked)


def test_a_swap_looks_at_each_subscription_once_and_stops_where_it_is_told() -> None:
    numbers = [b"%d" % n for n in range(3 * LEAST)]
    view = FakeView(subs={n: Subscription(n, b"s." + n, b"", b"s." + n) for n in numbers})
    before = chain([{"deny": ["x"]}]).bind(view, None, 0)
    check = chain([{"deny": ["s.7", "s.8"]}] * 50).check(view, before)
    assert check is not None
    revoked, steps = [], 0
    while not check.done:
        revoked += check.step(lambda: True)
        steps += 1
    assert [sid for sid, _ in revoked] == [b"7", b"8"]
    assert (check.looks, steps) == (3 * LEAST, 4)


def test_a_swap_to_the_same_rules_looks_at_no_subscription() -> None:
    view = FakeView(subs={b"1": Subscription(b"1", b"s", b"", b"s")})
    rules = chain([{"deny": ["x"]}])
    before = rules.bind(view, None, 0)
    assert rules.check(view, before) is None
    assert rules.bind(view, before, 0) is before
