"""limit of connections and subscriptions: who is refused, and that all that is over is given back."""

from __future__ import annotations

import random

import pytest

from natsproxy.protocol.connect import Connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.kinds.count_limit import CountLimit, SubscriptionLimit
from natsproxy.wire.ops import C2S
from tests.rules.kit import FakeView, Wire
from tests.session.playbook import CONNECT, INFO, Playbook

HEAD = '[[rules]]\nname = "few"\nkind = "limit"\n'
SUBS = HEAD + "subscriptions = 2\n"
OPEN = HEAD + 'connections = 2\nper = "client"\n'
FULL = b"-ERR 'maximum connections exceeded'\r\n"


def connected(chain: RuleChain, name: bytes = b"app") -> Playbook:
    play = Playbook(chain)
    play.session.conn = random.getrandbits(60)
    return play.server(INFO).client(CONNECT.replace(b"app", name) + b"PING\r\n")


def chain_of(text: str, previous: RuleChain | None = None) -> RuleChain:
    chain = RuleChain(load(text, KINDS), previous=previous)
    chain.begin(0)
    return chain


def test_the_third_subscription_is_refused_as_the_server_does() -> None:
    wire = Wire(SUBS)
    assert [wire.c2s(f"SUB a {sid}") != b"" for sid in (1, 2)] == [True, True]
    decision = wire.decide(C2S, "SUB a 3")
    assert decision is not None
    assert (decision.answer, decision.out) == (b"-ERR 'maximum subscriptions exceeded'\r\n", ())
    assert decision.firings[0].detail == "above 2 subscriptions of one connection"
    assert wire.c2s("SUB b 2") != b""  # the server ignores it: the sid is in use
    wire.c2s("UNSUB 1")
    assert wire.c2s("SUB a 4") != b""
    assert wire.c2s("sub   b  q  5") == b""


@pytest.mark.parametrize("per", ["user", "client", "address", "account", "proxy"])
def test_subscriptions_of_several_connections_count_together(per: str) -> None:
    wire = Wire(SUBS + f'per = "{per}"\n', view=FakeView(conn=1))
    wire.c2s("SUB a 1")
    other = Wire("rules = []", view=FakeView(conn=2))
    other.chain, other.rules = wire.chain, wire.chain.bind(other.view, None, 0)
    assert [other.c2s(f"SUB a {sid}") != b"" for sid in (1, 2)] == [True, False]
    wire.view.subs.clear()  # it ended by itself: nobody told the rule
    assert other.c2s("SUB a 3") != b""
    wire.rules.close(0)
    other.rules.close(0)
    left = wire.chain.rules[0].action
    assert isinstance(left, SubscriptionLimit)
    assert [left._keys, left._members, left._known, left._totals] == [{}] * 4


def test_connections_above_it_end_with_the_servers_error_and_make_room_at_their_end() -> None:
    chain = chain_of(OPEN)
    first, second, third = (connected(chain) for _ in range(3))
    assert (first.end, second.end) == (None, None)
    assert third.to_client == INFO + FULL
    assert third.to_server == b""
    assert third.end is not None
    assert "above 2 connections of one client name" in third.end.detail
    assert connected(chain, b"other").end is None
    third.session.closed(0)
    assert connected(chain).end is not None  # one that was refused has left no room
    first.session.closed(0)
    assert connected(chain).end is None


def test_another_connect_is_no_way_past_it() -> None:
    chain = chain_of(OPEN)
    connected(chain), connected(chain)
    play = connected(chain, b"other").server(b"PONG\r\n")
    assert play.end is None
    play.client(CONNECT)
    assert play.end is not None


@pytest.mark.parametrize("early", [b"PUB a 0\r\n\r\n", b"SUB a 1\r\n", b"PING\r\n"])
def test_a_client_without_connect_is_not_served(early: bytes) -> None:
    play = Playbook(chain_of(OPEN)).server(INFO).client(early + CONNECT)
    assert play.to_server == b"PING\r\n"  # a fence of ours
    play.at(10**11)
    assert play.end is not None
    free = Playbook(chain_of(SUBS)).server(INFO).client(early)
    assert early in free.to_server


def test_a_change_of_the_rules_keeps_the_counts_and_counts_those_that_are_there() -> None:
    empty = chain_of("rules = []")
    first, second = connected(empty), connected(empty)
    before = chain_of(OPEN, empty)
    for play in (first, second):
        play.do(play.session.swap(before, 0))
    assert (first.end, second.end) == (None, None)
    assert connected(before).end is not None
    after = chain_of(OPEN.replace("= 2", "= 3"), before)
    first.do(first.session.swap(after, 0))  # the other one is still to come
    third = connected(after)
    assert third.end is None
    assert connected(after).end is not None
    second.do(second.session.swap(after, 0))
    assert connected(after).end is not None
    for play in (first, second, third):
        play.session.closed(0)
    left = after.rules[0].action
    assert isinstance(left, CountLimit)
    assert [left._keys, left._members] == [{}] * 2


def test_in_shadow_all_are_served() -> None:
    chain = chain_of(OPEN + 'mode = "shadow"\n')
    plays = [connected(chain) for _ in range(4)]
    assert [play.end for play in plays] == [None] * 4
    told = [getattr(event, "action", None) for play in plays for event in play.events]
    assert told.count("would limit") == 2


def test_random_comings_and_goings_are_counted_right() -> None:
    rng = random.Random(7)
    live: list[Wire] = []
    chain = RuleChain(load(HEAD + 'subscriptions = 5\nper = "client"\n', KINDS), seed=1)
    for step in range(2000):
        if rng.random() < 0.1 or not live:
            name = rng.choice("ab")
            view = FakeView(conn=step, connect=Connect(verbose=False, name=name))
            one = Wire("rules = []", view=view)
            one.chain, one.rules = chain, chain.bind(view, None, 0)
            live.append(one)
        one = rng.choice(live)
        name = one.view.connect.name
        total = sum(len(other.view.subs) for other in live if other.view.connect.name == name)
        act = rng.random()
        if act < 0.5:
            assert (one.c2s(f"SUB a {step}") != b"") is (total < 5)
        elif act < 0.9 and one.view.subs:
            del one.view.subs[rng.choice(list(one.view.subs))]
        elif act > 0.95:
            live.remove(one)
            one.rules.close(0)
