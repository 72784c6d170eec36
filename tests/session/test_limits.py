"""Limits that hold frames back: what waits, what does not, and whose turn it is."""

from __future__ import annotations

from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.ops import C2S
from tests.session.playbook import CONNECT, INFO, Playbook

S = 1_000_000_000
RULE = '[[rules]]\nname = "r"\nkind = "limit"\nsubject = "a.>"\nmessages = "1/s"\n'
ACK = b"PUB $JS.ACK.S.C.1.2.3.4.0 4\r\n+ACK\r\n"


def pub(number: int) -> bytes:
    return b"PUB a.%d 0\r\n\r\n" % number


def under(text: str, **settings: object) -> Playbook:
    return Playbook(RuleChain(load(text, KINDS)), **settings).greeted()


def test_frames_wait_in_their_order_and_what_is_behind_them_too() -> None:
    play = under(RULE).client(pub(1) + pub(2) + b"PUB b 0\r\n\r\n" + pub(3) + b"SUB x 1\r\nPING\r\n")
    assert play.at(S - 1).to_server == pub(1)
    assert play.at(S).to_server == pub(2) + b"PUB b 0\r\n\r\n"
    assert play.at(2 * S - 1).to_server == b""
    assert play.at(2 * S).to_server == pub(3) + b"SUB x 1\r\nPING\r\n"
    play.nothing()
    assert play.client(pub(4)).at(2 * S).to_server == b""
    assert play.at(3 * S).to_server == pub(4)


def test_pongs_and_acks_go_ahead_alone_or_among_others() -> None:
    for together in (True, False):
        play = under(RULE)
        came = [pub(1), pub(2), ACK, b"PUB b 0\r\n\r\n", b"PONG\r\n", b"pub" + ACK[3:], pub(3)]
        for data in [b"".join(came)] if together else came:
            play.client(data)
        went = play.at(S - 1).to_server
        assert went == pub(1) + ACK + b"PONG\r\n" + b"pub" + ACK[3:], together
        assert play.at(2 * S).to_server == pub(2) + b"PUB b 0\r\n\r\n" + pub(3)
        play.client(ACK + pub(4) + ACK).at(2 * S)
        assert play.to_server == ACK + ACK


def test_records_have_both_times_and_both_places() -> None:
    play = under(RULE).client(pub(1) + pub(2) + ACK).at(S)
    places = {
        bytes(one.data): (one.in_first, one.out_first, one.out_t, one.cause)
        for one in play.records
        if one.direction == C2S and b"PUB" in one.data
    }
    assert places == {pub(1): (2, 2, 0, None), ACK: (4, 3, 0, None), pub(2): (3, 4, S, "r")}
    assert sum(play.session.traffic().frames(0)) == sum(play.session.traffic().frames(1))


def test_the_servers_pings_are_answered_for_a_client_that_is_not_read() -> None:
    play = under(RULE, queue_bytes=1)
    play.client(b"".join(map(pub, range(200)))).at(0)
    assert play.session.pipes[C2S].full
    assert play.to_server == pub(0)
    play.server(b"PING\r\n").at(0)
    assert (play.to_server, play.to_client) == (b"PONG\r\n", b"")
    play.at(300 * S)
    assert play.to_server == b"".join(map(pub, range(1, 200)))
    play.server(b"PING\r\n").at(play.now)
    assert (play.to_server, play.to_client) == (b"", b"PING\r\n")


def test_a_client_that_is_read_answers_itself() -> None:
    play = under(RULE).client(pub(1) + pub(2)).server(b"PING\r\n").at(0)
    assert (play.to_server, play.to_client) == (pub(1), b"PING\r\n")
    assert play.client(b"PONG\r\n").at(0).to_server == b"PONG\r\n"


def test_connections_that_share_a_limit_take_turns() -> None:
    chain = RuleChain(load(RULE + 'per = "proxy"\n', KINDS))
    greedy, modest = Playbook(chain).greeted(), Playbook(chain).greeted()
    greedy.client(b"".join(map(pub, range(100))))
    modest.client(pub(7) + pub(8))
    for play in (greedy, modest):
        play.at(0)
    assert (greedy.to_server, modest.to_server) == (pub(0), b"")
    turns = []
    for second in range(6):
        for name, play in (("greedy", greedy), ("modest", modest)):
            turns += [name] * play.at(second * S).to_server.count(b"PUB")
    assert turns == ["greedy", "modest", "greedy", "modest", "greedy"]


def test_what_waits_is_sent_after_the_end_of_the_client() -> None:
    play = under(RULE).client(pub(1) + pub(2)).eof(C2S)
    assert play.at(S - 1).to_server == pub(1)
    assert play.at(S).to_server == pub(2)
    assert play.finished == [C2S]


def test_a_payload_in_pieces_waits_whole() -> None:
    play = under(RULE).client(pub(1) + b"PUB a.2 100000\r\n" + b"x" * 70_000).at(9 * S)
    assert play.to_server == pub(1)
    play.client(b"x" * 30_000 + b"\r\n").at(9 * S)
    assert play.to_server == b"PUB a.2 100000\r\n" + b"x" * 100_000 + b"\r\n"
    play.client(pub(3)).at(9 * S)
    assert (play.to_server, play.at(10 * S).to_server) == (b"", pub(3))


def test_a_rule_that_goes_leaves_what_waits_in_its_order() -> None:
    play = under(RULE).client(pub(1) + pub(2))
    play.do(play.session.swap(RuleChain(previous=play.session.chain), 0))  # type: ignore[arg-type]
    play.client(pub(3)).at(S - 1)
    assert play.to_server == pub(1)
    assert play.at(S).to_server == pub(2) + pub(3)


def test_nothing_but_the_greeting_before_the_client_is_known() -> None:
    chain = RuleChain(load(RULE + 'per = "client"\n', KINDS))
    play = Playbook(chain).server(INFO).client(CONNECT + b"PING\r\n" + pub(1) + pub(2))
    assert play.at(0).to_server == CONNECT + b"PING\r\n" + pub(1)
