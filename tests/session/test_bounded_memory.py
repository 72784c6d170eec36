"""Memory that one connection takes stays bounded, whatever its client sends and for how long."""

from __future__ import annotations

import tracemalloc

import pytest

from natsproxy import close_reasons
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session import subscriptions
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C
from tests.session.playbook import CONNECT, INFO, Playbook

PONG = encode.PONG
MOST = 64
DROP = '[[rules]]\nname = "d"\nkind = "drop"\nsubject = "o.*"\n'


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that tests reach them soon."""
    monkeypatch.setattr(subscriptions, "MOST_UNCERTAIN", MOST)
    monkeypatch.setattr(subscriptions, "MOST_REFUSED", MOST)


def ruled(text: str, **settings: object) -> Playbook:
    return Playbook(RuleChain(load(text, KINDS)), **settings).greeted()


def test_a_second_connect_ends_the_watch_on_its_subscriptions() -> None:
    for play in (Playbook().greeted(), ruled(DROP)):
        for number in range(50):
            play.client(b"SUB a %d\r\nSUB o.* x%d\r\nUNSUB %d 5\r\n" % (number, number, number))
            play.client(CONNECT).server(PONG)
        scanner = play.session.pipes[S2C].scanner
        assert (len(scanner.watch_sids), len(scanner.tallies), len(play.session.subs)) == (0, 0, 0)


def test_news_of_the_server_do_not_pile_up_before_the_first_pong() -> None:
    """The latest are kept, without the reads in which they came."""
    play = Playbook().server(INFO).client(CONNECT)
    assert play.to_client == INFO
    message = b"MSG a 1 30000\r\n" + b"x" * 30_000 + b"\r\n"
    tracemalloc.start()
    for number in range(100):
        play.server(message + b'INFO {"connect_urls":["10.0.0.%d:4222"]}\r\n' % number)
        assert play.to_client == message
        play.records.clear()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 300_000
    play.client(encode.PING).server(PONG)
    *news, last = play.to_client.removeprefix(PONG).splitlines()
    assert (len(news), last) == (15, b'INFO {"connect_urls":["10.0.0.99:4222"]}')


def test_fences_count_for_the_memory_that_they_take() -> None:
    """A client that does not read keeps the PONGs of the server back: then it is not read either."""
    play = ruled(DROP, queue_bytes=100_000)
    c2s = play.session.pipes[C2S]
    for number in range(200):
        assert not c2s.full or number > 100
        play.client(b"SUB a %d\r\nUNSUB %d 5\r\n" % (number, number))
    assert c2s.full
    play.server(PONG * 200)
    assert (c2s.full, c2s.owed) == (False, 0)
    assert not play.to_client


def test_an_answer_goes_out_once_where_the_pong_comes_behind_the_deadline() -> None:
    """A drain outlives the deadline of its fence."""
    play = ruled(DROP.replace("drop", "deny"))
    play.client(b"SUB _R.* 1\r\nPUB q _R.1 0\r\n\r\nPUB o.x 0\r\n\r\n")
    play.session.drain(0)
    play.do(play.session.take_actions())
    play.at(10**12)
    assert play.to_client.count(b"-ERR") == 1
    assert play.server(PONG).to_client == b""


def test_of_subscriptions_that_the_server_may_have_ended_the_oldest_go() -> None:
    """They end at the server too: a rule that comes later must know of each one that is live."""
    play = Playbook().greeted()
    pipe = play.session.pipes[S2C]
    for number in range(3 * MOST):
        sid = b"%d" % number
        play.client(b"SUB a %s\r\n" % sid).server(b"MSG a %s 0\r\n\r\n" % sid)
        play.client(b"UNSUB %s 1\r\n" % sid)
        assert len(play.session.subs) <= MOST
        play.server(PONG * play.to_server.count(encode.PING))
        assert play.to_client == b"MSG a %s 0\r\n\r\n" % sid
    assert len(pipe.scanner.watch_sids) == len(play.session.subs)


def test_an_ended_subscription_delivers_nothing_more() -> None:
    play = Playbook().greeted()
    message = b"MSG a 0 0\r\n\r\n"
    play.client(b"SUB a 0\r\n").server(message)
    play.client(b"UNSUB 0 1\r\n")
    for number in range(1, MOST + 1):
        play.client(b"SUB a %d\r\n" % number).server(b"MSG a %d 0\r\n\r\n" % number)
        play.client(b"UNSUB %d 1\r\n" % number)
    assert b"UNSUB 0\r\nUNSUB 1\r\n" in play.to_server
    assert play.to_client.startswith(message)
    assert play.server(message).to_client == b""
    play.server(PONG + PONG).client(b"SUB a 0\r\n")
    assert play.server(message).to_client == message


@pytest.mark.parametrize("limit", [b"1", b"9"])
def test_a_limit_that_no_delivery_came_before_is_counted_exactly(limit: bytes) -> None:
    """The server has such subscriptions for certain, and they stay: another SUB of the sid is ignored."""
    play = Playbook().greeted()
    for number in range(MOST + 1):
        play.client(b"SUB a %d\r\nUNSUB %d %s\r\n" % (number, number, limit))
    assert len(play.session.subs) == MOST + 1
    play.client(b"SUB b 7\r\n")
    assert play.session.subs[b"7"].subject == b"a"
    play.server(b"MSG a 7 0\r\n\r\n" * int(limit))
    assert b"7" not in play.session.subs


def test_a_refused_sub_does_not_hide_the_one_that_the_server_may_have() -> None:
    """A rule that denies the second SUB of a sid ends the first one for certain."""
    play = ruled(DROP.replace("drop", "deny"))
    play.do(play.session.swap(RuleChain(load("rules = []", KINDS)), 0))
    play.client(b"SUB a 1\r\n").server(b"MSG a 1 0\r\n\r\n").client(b"UNSUB 1 1\r\n")
    play.do(play.session.swap(RuleChain(load(DROP.replace("drop", "deny"), KINDS)), 0))
    assert play.to_server.endswith(b"UNSUB 1 1\r\n")
    assert play.to_client
    play.client(b"SUB o.* 1\r\n")
    assert b"UNSUB 1\r\n" in play.to_server
    assert play.server(b"MSG a 1 0\r\n\r\n").to_client == b""


REFUSAL = b"-ERR 'maximum subscriptions exceeded'\r\n"


def test_subscriptions_that_the_server_refused_do_not_pile_up() -> None:
    """It does not say which one it refused; a client that goes on and on is not served."""
    play = Playbook().greeted()
    for number in range(MOST + 10):
        play.client(b"SUB a %d\r\n" % number).server(REFUSAL)
        if play.end is not None:
            break
    assert play.end is not None
    assert play.end.cause == close_reasons.CLIENT_PROTOCOL
    assert len(play.session.subs) <= MOST + 2


def test_refused_subscriptions_that_the_client_takes_back_do_not_count() -> None:
    play = Playbook().greeted()
    play.client(b"SUB a 1\r\nSUB a 2\r\n")
    for number in range(MOST + 10):
        play.client(b"SUB a x%d\r\n" % number).server(REFUSAL).client(b"UNSUB x%d\r\n" % number)
    assert play.end is None
    assert list(play.session.subs) == [b"1", b"2"]


def test_messages_of_a_suspended_connection_count_where_the_server_has_a_limit() -> None:
    """The server ends the subscription without a message that came; the next SUB of the sid is a new one."""
    play = Playbook().greeted()
    play.client(b"SUB a 1\r\nUNSUB 1 1\r\n")
    play.session.suspend(0, on=True)
    play.server(b"MSG a 1 0\r\n\r\n")
    play.session.suspend(0, on=False)
    play.client(b"SUB b 1\r\n").server(b"MSG b 1 0\r\n\r\n" * 2)
    assert play.session.subs[b"1"].subject == b"b"
    assert play.to_client == b"MSG b 1 0\r\n\r\n" * 2


def test_a_verbose_client_gets_no_ok_for_subscriptions_that_are_ended_here() -> None:
    play = Playbook().server(INFO).client(CONNECT.replace(b'"verbose":false', b'"verbose":true'))
    play.client(encode.PING).server(b"+OK\r\n" + PONG)
    for number in range(MOST + 1):
        play.client(b"SUB a %d\r\n" % number).server(b"+OK\r\nMSG a %d 0\r\n\r\n" % number)
        assert play.to_server
        play.client(b"UNSUB %d 1\r\n" % number)
        if number < MOST:
            play.server(b"+OK\r\n")
    assert play.to_client
    ended = b"".join(b"UNSUB %d\r\n" % number for number in range(MOST // 4))
    assert play.to_server == encode.PING + ended + encode.PING + b"UNSUB %d 1\r\n" % MOST
    play.server(PONG + b"+OK\r\n" * (MOST // 4) + PONG + b"+OK\r\n")
    assert play.to_client == b"+OK\r\n"
