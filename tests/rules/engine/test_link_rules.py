"""Link rules: spans over binds, windows, gates, firings."""

from __future__ import annotations

import pytest

from natsproxy import close_reasons
from natsproxy.errors import ConfigError
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from natsproxy.session.values import Action, End, Send, SessionSettings
from natsproxy.wire.ops import C2S, S2C
from tests.rules.kit import MS, FakeView, S, Wire
from tests.session.playbook import Playbook

PAUSE = '[[rules]]\nname = "p"\nkind = "pause"\n'
OTHER = PAUSE.replace('"p"', '"other"')


def test_a_firing_is_reported_once_over_all_binds() -> None:
    wire = Wire(PAUSE)
    wire.rules.due(0)
    wire.rebind()
    wire.rules.due(S)
    assert [(firing.rule, firing.direction, firing.ordinal) for firing in wire.rules.fired] == [
        ("p", "c2s", None)
    ]


def test_a_window_counts_from_the_start_of_the_connection() -> None:
    wire = Wire(PAUSE + 'between = ["2s", "3s"]\n', now=10 * S)
    assert wire.rules.conditions(S2C, 10 * S) == (None, 12 * S)
    assert wire.rules.conditions(S2C, 12 * S)[0] == LinkConditions(paused=True)


def test_or_from_when_the_rule_was_loaded() -> None:
    chain = RuleChain(load(PAUSE + 'between = ["2s", "3s"]\nper = "proxy"\n', KINDS))
    chain.bind(FakeView(), None, 0)
    late = chain.bind(FakeView(ordinal=2), None, 2 * S)
    assert late.conditions(C2S, 2 * S)[0] == LinkConditions(paused=True)


@pytest.mark.parametrize("lines", ['between = ["+2s", "+3s"]', 'between = ["2s", "3s"]\nper = "proxy"'])
def test_or_from_when_the_rule_came_into_force_though_nobody_was_connected(lines: str) -> None:
    chain = RuleChain(load(f"{PAUSE}{lines}\n", KINDS))
    chain.begin(10 * S)
    early = chain.bind(FakeView(), None, 11 * S)
    assert early.conditions(C2S, 11 * S) == (None, 12 * S)
    during = chain.bind(FakeView(ordinal=2), None, 12 * S)
    assert during.conditions(C2S, 12 * S) == (LinkConditions(paused=True), 12 * S)
    assert during.conditions(C2S, 13 * S)[0] is None
    # The same rule in a new chain goes on, another one begins.
    again = RuleChain(load(f"{PAUSE}{lines}\n{OTHER}{lines}\n", KINDS), previous=chain)
    again.begin(20 * S)
    assert [rule.shared.since for rule in again.rules] == [10 * S, 20 * S]


def test_a_connection_that_opens_after_the_window_never_meets_the_rule() -> None:
    chain = RuleChain(load('[[rules]]\nname = "c"\nkind = "close"\nbetween = ["+2s", "+3s"]\n', KINDS))
    chain.begin(0)
    during, late = chain.bind(FakeView(), None, 2 * S), chain.bind(FakeView(ordinal=2), None, 4 * S)
    assert during.due(2 * S)[1] is not None
    assert late.due(4 * S) == ([], None, None)


def test_the_gate_of_a_link_is_asked_once_per_connection() -> None:
    chain = RuleChain(load(PAUSE + "probability = 0.5\n", KINDS), seed=3)
    conditions_changed = [
        chain.bind(FakeView(key=f"c{n}"), None, 0).conditions(C2S, 0)[0] is not None for n in range(200)
    ]
    again = [
        chain.bind(FakeView(key=f"c{n}"), None, 0).conditions(C2S, 0)[0] is not None
        for n in reversed(range(200))
    ]
    assert conditions_changed == again[::-1]
    assert 70 < sum(conditions_changed) < 130


def test_a_frame_begins_it_anew() -> None:
    wire = Wire(PAUSE + 'op = "PUB"\nlasts = "2s"\n')
    wire.decide(C2S, "PUB a 0\n")
    assert wire.rules.conditions(C2S, 0)[1] == 2 * S
    wire.now = S
    wire.decide(C2S, "PUB a 0\n")
    assert wire.rules.conditions(C2S, S)[1] == 3 * S


def test_frames_before_the_one_that_starts_a_rule_are_not_held_up() -> None:
    """That one is, though all came in one read."""
    chain = RuleChain(load(PAUSE + 'op = "MSG"\nafter = 1\nlimit = 1\n', KINDS))
    session = Session(SessionSettings(), chain, conn=1, ordinal=1, address="", record=False, now=0)
    session.receive(S2C, b'INFO {"headers":true,"max_payload":99} \r\n', 0)
    session.receive(C2S, b'CONNECT {"verbose":false}\r\nSUB a 1\r\n', 0)
    messages = [b"MSG a 1 1\r\n%d\r\n" % number for number in range(3)]
    actions = session.receive(S2C, b"".join(messages), 0)
    sent = [bytes(action.data) for action in actions if isinstance(action, Send) and action.direction == S2C]
    assert b"".join(sent) == messages[0]


HALF_OPEN = PAUSE + 'op = "{}"\nafter = 1\nlimit = 1\nboth = true\n'


@pytest.mark.parametrize("op", ["PUB", "MSG"])
def test_a_frame_of_either_direction_stops_both(op: str) -> None:
    """It is the first that is lost in the silence; the ends of the peers are not told either."""
    play = Playbook(RuleChain(load(HALF_OPEN.format(op), KINDS))).greeted()
    publish, message = b"PUB b 1\r\nx\r\n", b"MSG a 1 1\r\nx\r\n"
    (play.client if op == "PUB" else play.server)((publish if op == "PUB" else message) * 2)
    assert play.to_server + play.to_client == (publish if op == "PUB" else message)
    play.client(publish + b"PING\r\n").server(message + b"PING\r\n").at(600 * S)
    play.nothing()
    play.eof(C2S).at(700 * S)
    assert (play.finished, play.end) == ([], None)
    play.eof(S2C).at(800 * S)
    assert (play.finished, play.end) == ([], End(close_reasons.CLIENT_CLOSED))
    assert play.session.next_tick() is None


def test_a_half_open_link_comes_back() -> None:
    play = Playbook(RuleChain(load(HALF_OPEN.format("MSG") + 'lasts = "5s"\n', KINDS))).greeted()
    message = b"MSG a 1 1\r\nx\r\n"
    play.server(message + message).client(b"PING\r\n")
    assert (play.to_client, play.to_server) == (message, b"")
    play.at(5 * S)
    assert (play.to_client, play.to_server) == (message, b"PING\r\n")


def test_both_is_for_a_rule_that_a_frame_starts() -> None:
    with pytest.raises(ConfigError, match="both is for a rule that a frame starts"):
        load(PAUSE + 'direction = "c2s"\nboth = true\n', KINDS)


@pytest.mark.parametrize("op", ["PUB", "PING", "SUB"])
def test_the_frame_that_starts_it_meets_a_half_close(op: str) -> None:
    rules = f'[[rules]]\nname = "h"\nkind = "half_close"\ndirection = "c2s"\nop = "{op}"\nafter = 1\n'
    play = Playbook(RuleChain(load(rules, KINDS))).greeted()
    frame = {"PUB": b"PUB b 0\r\n\r\n", "PING": b"PING\r\n", "SUB": b"SUB a 1\r\n"}[op]
    play.client(frame * (2 - (op == "PING"))).at(0)
    assert (play.to_server, play.finished) == (frame if op != "PING" else b"", [C2S])
    assert play.records[-1].out_first is None
    assert len(play.session.subs) == (op == "SUB")


def test_the_message_that_starts_it_is_swallowed_and_a_subscription_is_not() -> None:
    rules = '[[rules]]\nname = "s"\nkind = "swallow"\ndirection = "c2s"\nop = ["PUB", "SUB"]\nlimit = 1\n'
    play = Playbook(RuleChain(load(rules, KINDS))).greeted().client(b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n")
    play.nothing()
    play = Playbook(RuleChain(load(rules, KINDS))).greeted().client(b"SUB a 1\r\nPUB b 0\r\n\r\n")
    play.at(0)
    assert play.to_server == b"SUB a 1\r\n"


def test_a_late_link_sends_everything_in_order_at_its_time() -> None:
    chain = RuleChain(
        load('[[rules]]\nname = "l"\nkind = "latency"\ndelay = "100ms"\ndirection = "c2s"\n', KINDS)
    )
    session = Session(SessionSettings(), chain, conn=1, ordinal=1, address="", record=False, now=0)
    session.receive(S2C, b'INFO {"headers":true,"max_payload":99} \r\n', 0)

    def sent(actions: list[Action]) -> bytes:
        return b"".join(bytes(action.data) for action in actions if isinstance(action, Send))

    connect = b'CONNECT {"verbose":false}\r\n'
    assert sent(session.receive(C2S, connect, 1 * MS)) == b""
    assert sent(session.receive(C2S, b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n", 2 * MS)) == b""
    assert sent(session.tick(100 * MS)) == b""
    assert sent(session.tick(101 * MS)) == connect
    assert session.next_tick() == 102 * MS
    assert sent(session.tick(102 * MS)) == b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n"
