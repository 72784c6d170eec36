"""Pull requests and heartbeats: statuses come as the live request demands them, whatever was recorded."""

from __future__ import annotations

import gc

import pytest

from natsproxy.replay.server_playback.delivery_requests import LiveRequest
from tests.replay.scripted import MS, Line, hello, named
from tests.replay.server_playback.playing import LARGE, Play, kept

NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.C"


def pub(subject: bytes, reply: bytes, body: bytes = b"") -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body)


def pull(inbox: bytes, body: bytes = b"") -> bytes:
    return pub(NEXT, inbox, body)


def status(text: bytes, inbox: bytes = b"inb") -> bytes:
    block = b"NATS/1.0 %b\r\n\r\n" % text
    return b"HMSG %b 1 %d %d\r\n%b\r\n" % (inbox, len(block), len(block), block)


def message(n: int, sid: bytes = b"1") -> bytes:
    return b"MSG s %b $JS.ACK.S.C.1.%d.%d.99.0 1\r\n%d\r\n" % (sid, n, n, n)


def playing(*lines: Line) -> Play:
    play = Play([*hello(1, "a"), *lines])
    play.open(1, "a")
    return play


EMPTY: list[Line] = [(1, ">", b"SUB inb 1\r\n" + pull(b"inb")), (1, "<", status(b"408 Request Timeout"))]


def test_a_pull_request_ends_when_its_time_is_over() -> None:
    play = playing(*EMPTY)
    assert play.send(1, b"SUB inb 1\r\n" + pull(b"inb", b'{"batch":2,"expires":5000000}')) == b""
    assert play.machine.deadline == 5 * MS
    play.wait(5 * MS - 1)
    assert play.got[1] == b""
    play.wait(1)
    assert b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\n" in play.got[1]
    assert play.machine.deadline is None
    assert play.machine.done


def test_one_that_does_not_wait_ends_at_once() -> None:
    hasty = pull(b"inb", b'{"batch":3,"no_wait":true}')
    play = playing((1, ">", b"SUB inb 1\r\n" + hasty), (1, "<", message(1) + status(b"404 No Messages")))
    assert play.send(1, b"SUB inb 1\r\n" + hasty) == message(1) + status(b"404 No Messages")
    assert play.send(1, hasty) == status(b"404 No Messages")


def test_one_that_does_not_wait_for_more_ends_behind_a_message_that_came_late() -> None:
    hasty, put = pull(b"inb", b'{"batch":3,"no_wait":true,"expires":9000000000}'), b"PUB s 1\r\n1\r\n"
    late = message(1) + status(b"404 No Messages")
    play = playing((1, ">", b"SUB inb 1\r\n" + hasty), (1, ">", put), (1, "<", late))
    assert play.send(1, b"SUB inb 1\r\n" + hasty) == b""
    assert play.send(1, put) == late


def test_heartbeats_come_at_the_distance_that_the_request_names() -> None:
    play = playing(*EMPTY)
    play.send(1, b"SUB inb 1\r\n" + pull(b"inb", b'{"expires":5000000,"idle_heartbeat":2000000}'))
    for _ in range(4):
        play.wait(MS)
    assert play.got[1].count(b"100 Idle Heartbeat\r\nNats-Last-Consumer: 0\r\n") == 2
    play.wait(MS)
    assert b"408" in play.got[1]


def test_more_pull_requests_than_recorded_are_as_empty() -> None:
    play = playing(*EMPTY)
    play.send(1, b"SUB inb 1\r\n")
    for n in range(3):
        play.send(1, pull(b"inb", b'{"expires":1000000}'))
        play.wait(MS)
        assert play.got[1].count(b"408") == n + 1
    assert play.machine.mismatches == []


@pytest.mark.parametrize("stands", [False, True])
def test_the_request_that_is_due_goes_before_the_one_that_is_equal(stands: bool) -> None:
    """The recorded program had asked for fewer messages at that place.

    stands: the live program asks before it makes the change that has to come first.
    """
    ten, nine = (b'{"batch":%d,"expires":5000000}' % batch for batch in (10, 9))
    play = playing(
        (1, ">", b"SUB inb 1\r\n" + pull(b"inb", ten)),
        (1, "<", message(1)),
        (1, ">", b"PUB done 1\r\n1\r\n" + pull(b"inb", nine)),
        (1, "<", message(2)),
        (1, ">", b"PUB done 1\r\n2\r\n" + pull(b"inb", ten)),
        (1, "<", message(3)),
    )
    assert play.send(1, b"SUB inb 1\r\n" + pull(b"inb", ten)) == message(1)
    asked = (pull(b"inb", ten), b"PUB done 1\r\n1\r\n")
    assert play.send(1, b"".join(asked if stands else reversed(asked))) == message(2)
    assert play.send(1, b"PUB done 1\r\n2\r\n" + pull(b"inb", ten)) == message(3)
    assert play.machine.done


def test_a_message_goes_to_the_request_that_stands() -> None:
    """Its own recorded request had to end before the program published."""
    inboxes = [b"_INBOX.%b" % (letter * 21 + b"1") for letter in (b"A", b"B", b"C", b"D", b"E")]
    subs = [b"SUB %b %d\r\n" % (inbox, sid + 1) for sid, inbox in enumerate(inboxes)]
    play = playing(
        (1, ">", subs[0] + pull(inboxes[0])),
        (1, ">", subs[1] + b"PUB s 1\r\n1\r\n" + pull(inboxes[1])),
        (1, "<", message(1, b"2")),
    )
    for n in (2, 3):
        play.send(1, subs[n] + pull(inboxes[n], b'{"expires":1000000}'))
        play.wait(MS)
    assert play.got[1].count(b"408") == 2
    play.send(1, subs[4] + pull(inboxes[4]))
    assert play.send(1, b"PUB s 1\r\n1\r\n") == message(1, b"5")
    assert play.machine.done


def test_a_smaller_batch_gets_its_part() -> None:
    play = playing(
        (1, ">", b"SUB inb 1\r\n" + pull(b"inb", b'{"batch":3}')),
        (1, "<", b"".join(message(n) for n in (1, 2, 3))),
    )
    assert play.send(1, b"SUB inb 1\r\n" + pull(b"inb", b'{"batch":2}')) == message(1) + message(2)
    assert not play.machine.done
    assert play.send(1, pull(b"inb", b'{"batch":2}')) == message(3)
    assert play.machine.done


def test_a_request_whose_client_stopped_listening_stands_no_more() -> None:
    play = playing(
        (1, ">", b"SUB a 1\r\nSUB b 2\r\n" + pull(b"a") + pull(b"b") + b"PUB s 1\r\n1\r\n"),
        (1, "<", message(1)),
    )
    play.send(1, b"SUB a 1\r\nSUB b 2\r\n" + pull(b"a") + b"UNSUB 1\r\n" + pull(b"b"))
    assert play.send(1, b"PUB s 1\r\n1\r\n") == message(1, b"2")


def test_requests_that_have_ended_are_forgotten() -> None:
    play = playing(*EMPTY)
    play.send(1, b"SUB inb 1\r\n")
    for _ in range(100):
        play.send(1, pull(b"inb", b'{"expires":1000000}'))
        play.wait(MS)
    play.send(1, pull(b"inb"))
    requests = play.machine._requests
    assert [one.open for one in requests.pulls[named(1), (b"S", b"C")]] == [True]
    assert requests.next_due() is None


CONFIG = b'{"config":{"deliver_subject":"dlv","idle_heartbeat":2000000%b}}'
CREATE = b"$JS.API.CONSUMER.CREATE.S"


@pytest.mark.parametrize("starts_again", [False, True])
def test_a_push_consumer_beats_until_its_client_has_to_start_again(starts_again: bool) -> None:
    again = pub(CREATE, b"i2", CONFIG % b',"opt_start_seq":2') if starts_again else b""
    play = playing(
        (1, ">", b"SUB dlv 1\r\n" + pub(CREATE, b"i", CONFIG % b"")),
        (1, "<", message(1)),
        (1, "<", status(b"100 Idle Heartbeat", b"dlv")),
        (1, ">", b"PUB next 0\r\n\r\n" + again),
    )
    assert play.send(1, b"SUB dlv 1\r\n" + pub(CREATE, b"i", CONFIG % b"")) == message(1)
    play.wait(2 * MS)
    assert b"100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n" in play.got[1]
    play.send(1, b"PUB next 0\r\n\r\n")
    play.wait(2 * MS)
    assert play.got[1].count(b"Heartbeat") == (1 if starts_again else 2)


def test_pulls_that_got_their_messages_leave_before_their_time_is_over() -> None:
    body = b'{"batch":1,"expires":30000000000}'
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB _INBOX.a.* 1\r\n")]
    for n in range(1, 501):
        ack = b"$JS.ACK.S.C.1.%d.%d.0.0" % (n, n)
        lines += [(1, ">", pull(b"_INBOX.a.%d" % n, body)), (1, "<", b"MSG s 1 %b 1\r\nx\r\n" % ack)]
    play = Play(lines)
    play.open(1, "a")
    play.send(1, b"SUB _INBOX.a.* 1\r\n")
    for n in range(1, 501):
        read = pull(b"_INBOX.a.%d" % n, body) + (LARGE if n == 500 else b"")
        assert b"MSG s" in play.send(1, read)
    assert kept(len(read)) == []
    assert sum(isinstance(one, LiveRequest) for one in gc.get_objects()) < 250
