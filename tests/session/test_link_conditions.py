"""The conditions of a link: what becomes of the server's bytes under each of them."""

from __future__ import annotations

from natsproxy.rules.interface import LinkConditions
from natsproxy.wire.ops import C2S, S2C
from tests.session.playbook import OneRule, Playbook

S = 1_000_000_000
MSG = b"MSG a 1 5\r\nhello\r\n"


def under(conditions: LinkConditions) -> Playbook:
    """Return a session past its greeting, whose s2c link has conditions."""
    play = Playbook().greeted()
    put(play, conditions)
    return play


def put(play: Playbook, conditions: LinkConditions) -> None:
    """Change the conditions of the s2c link."""
    play.do(play.session.swap(OneRule(lambda *_: None, link=conditions), play.now))


def test_delay() -> None:
    play = under(LinkConditions(delay=S)).server(MSG)
    assert play.at(S - 1).to_client == b""
    assert play.at(S).to_client == MSG


def test_rate() -> None:
    play = under(LinkConditions(rate=100)).server(MSG * 10)
    sent = [len(play.at(number * S).to_client) for number in (1, 2)]
    assert sent == [101, 79]  # the first byte at once


def test_the_end_of_a_stream_waits_for_the_bytes_of_a_slow_link() -> None:
    play = under(LinkConditions(rate=100)).server(MSG * 10).eof(S2C)
    assert (len(play.at(S).to_client), play.finished) == (101, [])
    assert (len(play.at(2 * S).to_client), play.finished) == (79, [S2C])


def test_slices() -> None:
    play = under(LinkConditions(slice_size=4, slice_delay=S)).server(MSG)
    assert [play.at(number * S).to_client for number in range(4)] == [b"MSG ", b"a 1 ", b"5\r\nh", b"ello"]


def test_a_pause_ends_with_its_rule() -> None:
    play = under(LinkConditions(paused=True)).server(MSG)
    assert play.at(60 * S).to_client == b""
    put(play, LinkConditions())
    assert play.at(play.now).to_client == MSG


def test_messages_are_swallowed() -> None:
    play = under(LinkConditions(swallow=True)).server(MSG + b"PING\r\n" + MSG)
    assert play.at(play.now).to_client == b"PING\r\n"
    assert [record.data for record in play.records if record.out_first is None and MSG in record.data]


def test_the_server_is_not_read() -> None:
    play = under(LinkConditions(stop_reading=True))
    assert (play.session.pipes[S2C].full, play.session.pipes[C2S].full) == (True, False)
    put(play, LinkConditions())
    assert not play.session.pipes[S2C].full


def test_the_client_gets_an_end_and_what_still_comes_is_lost() -> None:
    play = under(LinkConditions(finish=True))
    assert play.at(play.now).finished == [S2C]
    play.server(MSG).client(b"PUB b 0\r\n\r\n")
    assert (play.to_client, play.to_server, play.end) == (b"", b"PUB b 0\r\n\r\n", None)


def test_the_end_of_the_server_is_late() -> None:
    play = under(LinkConditions(fin_delay=S)).server(MSG).eof(S2C)
    assert (play.at(S - 1).to_client, play.end) == (MSG, None)
    assert play.at(S).end is not None
