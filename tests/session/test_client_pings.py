"""PINGs of ours to the client: when they go out, whose PONGs come back, and what the server sees of it."""

from __future__ import annotations

import pytest

from natsproxy.events import Firing
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import LinkConditions
from natsproxy.rules.kinds import KINDS
from natsproxy.session.values import FROM_CLIENT, TO_CLIENT, TO_SERVER
from natsproxy.wire.ops import C2S, Op
from tests.session.playbook import CONNECT, INFO, OneRule, Playbook

PING, PONG = b"PING\r\n", b"PONG\r\n"
MSG = b"MSG a 1 4\r\nabcd\r\n"


def ask(play: Playbook) -> list[int]:
    """Ask the client for a sign of life; return the list that gets the time of its answer."""
    answers: list[int] = []
    play.session.ask(play.now, answers.append)
    play.do(play.session.take_actions())
    return answers


def test_the_client_is_asked_and_the_server_notices_nothing() -> None:
    play = Playbook().greeted()
    play.now = 7
    answers = ask(play)
    assert (play.to_client, play.to_server, answers) == (PING, b"", [])
    play.client(b"PUB a 0\r\n\r\n" + PONG + b"PUB b 0\r\n\r\n")
    assert (play.to_server, answers) == (b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n", [7])
    assert play.session.pipes[C2S].watched == 0
    traffic = play.session.traffic()
    assert [traffic.frames(point)[Op.PONG] for point in (FROM_CLIENT, TO_SERVER)] == [1, 0]
    assert traffic.frames(TO_CLIENT)[Op.PING] == 1


def test_it_is_recorded_as_ours() -> None:
    play = Playbook().greeted()
    ask(play)
    play.client(PONG)
    asked, answered = play.records[-2:]
    assert (asked.data, asked.in_first, asked.out_first, asked.cause) == (PING, None, 2, "proxy")
    assert (answered.data, answered.in_first, answered.out_first, answered.cause) == (PONG, 2, None, "proxy")


def test_nothing_goes_out_before_the_first_pong() -> None:
    play = Playbook().server(INFO)
    early = ask(play)
    play.client(CONNECT + PING)
    late = ask(play)
    assert (play.to_client, play.to_server) == (INFO, CONNECT + PING)
    play.server(PONG)
    assert play.to_client == PONG + PING + PING
    play.client(PONG)
    assert (early, late) == ([0], [])
    play.client(PONG)
    assert (early, late, play.to_server) == ([0], [0], b"")


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("behind", [0, 2])
def test_the_server_gets_the_pongs_that_it_asked_for(before: int, behind: int) -> None:
    """In the order of the PINGs: those that it sent before ours, and after."""
    play = Playbook().greeted().server(PING * before)
    first = ask(play)
    play.server(PING * behind)
    second = ask(play)
    assert play.to_client == PING * (before + 1 + behind + 1)
    play.client(PONG * before)
    assert (play.to_server, first, second) == (PONG * before, [], [])
    play.client(PONG)
    assert (play.to_server, first, second) == (b"", [0], [])
    play.client(PONG * behind + PONG + PONG)
    assert (play.to_server, second) == (PONG * (behind + 1), [0])


def test_a_pong_that_nobody_asked_for_does_not_hide_the_answer() -> None:
    play = Playbook().greeted().client(PONG * 3)
    assert play.to_server == PONG * 3
    answers = ask(play)
    play.client(PONG)
    assert (play.to_server, answers) == (b"", [0])


def test_it_goes_out_at_the_end_of_a_frame() -> None:
    play = Playbook().greeted().server(PING + b"MSG a 1 100000\r\n" + b"x" * 70_000)
    assert play.to_client.startswith(PING + b"MSG a 1 100000\r\n")
    first, second = ask(play), ask(play)
    play.nothing()
    play.server(b"x" * 30_000 + b"\r\n" + MSG)
    assert play.to_client.endswith(b"x\r\n" + PING + PING + MSG)
    play.client(PONG)
    assert (play.to_server, first) == (PONG, [])
    play.client(PONG)
    assert (play.to_server, first, second) == (b"", [0], [])
    play.client(PONG)
    assert (play.to_server, second) == (b"", [0])


def test_pings_of_the_server_that_a_rule_holds_back_come_first() -> None:
    chain = OneRule(lambda *_: None, link=LinkConditions(delay=10))
    play = Playbook().greeted()
    play.do(play.session.swap(chain, 0))
    play.server(MSG + PING + MSG)
    answers = ask(play)
    assert play.at(10).to_client == MSG + PING + MSG + PING
    play.client(PONG)
    assert (play.to_server, answers) == (PONG, [])
    play.client(PONG)
    assert (play.to_server, answers) == (b"", [10])


def test_rules_about_pings_and_pongs_do_not_see_it() -> None:
    rules = "".join(
        f'[[rules]]\nname = "{op}"\nkind = "drop"\nop = "{op}"\ndirection = "{direction}"\n'
        for op, direction in (("PING", "s2c"), ("PONG", "c2s"))
    )
    play = Playbook(RuleChain(load(rules, KINDS))).greeted().server(PING)
    assert play.to_client == b""
    answers = ask(play)
    assert play.to_client == PING
    play.client(PONG)
    assert (play.to_server, answers) == (b"", [0])
    assert [each.kind for each in play.events if isinstance(each, Firing)] == ["drop"]


def test_a_suspended_client_is_asked_too() -> None:
    play = Playbook().greeted()
    play.session.suspend(0, on=True)
    answers = ask(play)
    play.client(b"PUB a 0\r\n\r\n" + PONG)
    assert (play.to_client, play.to_server, answers) == (PING, b"", [0])


def test_nobody_is_asked_at_the_end() -> None:
    play = Playbook().greeted()
    unanswered = ask(play)
    assert play.to_client == PING
    play.session.expel(0, error="bye", cause="killed", detail="")
    play.do(play.session.take_actions())
    assert (ask(play), play.to_client) == ([], b"-ERR 'bye'\r\n")
    play.session.dispose()
    assert unanswered == []
