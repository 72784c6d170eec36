"""Memory that one connection takes stays bounded, whatever its client sends and for how long."""

from __future__ import annotations

import tracemalloc

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C
from tests.session.playbook import CONNECT, INFO, Playbook

PONG = encode.PONG
DROP = '[[rules]]\nname = "d"\nkind = "drop"\nsubject = "o.*"\n'


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
    play.session.control.drain(0)
    play.do(play.session.take_actions())
    play.at(10**12)
    assert play.to_client.count(b"-ERR") == 1
    assert play.server(PONG).to_client == b""
