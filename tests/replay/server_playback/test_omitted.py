"""What a program must not leave out."""

from __future__ import annotations

import pytest

from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.wire import encode
from tests.replay.scripted import Line, hello
from tests.replay.server_playback.playing import Play

ACK = b"$JS.ACK.S.C.%d.5.6.1700000000000000000.0"


def _omitted(*sent: bytes) -> list[bytes]:
    """Record frames, and play a client that sends none of them."""
    play = Play([*hello(1, "a"), *((1, ">", data) for data in sent)])
    play.open(1, "a")
    return [one.frame.subject for one in play.machine.omitted()]


def _call(verb: bytes) -> bytes:
    return encode.pub(b"$JS.API." + verb, b"{}", reply=b"_INBOX.1.1")


@pytest.mark.parametrize(
    ("frame", "required"),
    [
        (b"PUB x 0\r\n\r\n", True),
        (b"PUB x _INBOX.1.1 0\r\n\r\n", True),
        (b"PUB _INBOX.9.9 0\r\n\r\n", True),
        (b"SUB x 1\r\n", True),
        (b"SUB _INBOX.1.* 1\r\n", False),
        (b"UNSUB 1\r\n", False),
        (encode.pub(ACK % 1, b"+ACK"), True),
        (encode.pub(ACK % 1), True),
        (encode.pub(ACK % 1, b"+ACK", reply=b"_INBOX.1.1"), True),
        (encode.pub(ACK % 1, b'-NAK {"delay":1}'), True),
        (encode.pub(ACK % 1, b"+TERM"), True),
        (encode.pub(ACK % 1, b"+WPI"), False),
        (encode.pub(b"$JS.FC.S.x"), False),
        *((_call(verb), True) for verb in (b"STREAM.DELETE.S", b"STREAM.PURGE.S", b"STREAM.CREATE.S")),
        *((_call(verb), True) for verb in (b"CONSUMER.DELETE.S.C", b"STREAM.MSG.DELETE.S")),
        *((_call(verb), False) for verb in (b"INFO", b"STREAM.INFO.S", b"STREAM.NAMES", b"DIRECT.GET.S")),
        *((_call(verb), False) for verb in (b"CONSUMER.INFO.S.C", b"CONSUMER.MSG.NEXT.S.C")),
        (encode.pub(b"$SRV.PING", reply=b"_INBOX.1.1"), False),
    ],
)
def test_a_change_must_not_be_left_out_and_a_question_may(frame: bytes, required: bool) -> None:
    assert bool(_omitted(frame)) == required


def test_a_subject_of_repeat_must_come_once() -> None:
    beat = b"PUB health 0\r\n\r\n"
    options = MatchOptions(**read({"repeat": "health"}))
    play = Play([*hello(1, "a"), (1, ">", beat + beat)], options=options)
    play.open(1, "a")
    assert len(play.machine.omitted()) == 2
    play.send(1, beat)
    assert play.machine.omitted() == []


def _deliver(delivered: int) -> Line:
    return 1, "<", b"MSG _INBOX.1.1 1 %b 1\r\nx\r\n" % (ACK % delivered)


def test_an_ack_of_a_redelivery_that_has_not_come_may_be_left_out() -> None:
    pull = _call(b"CONSUMER.MSG.NEXT.S.C")
    start = b"SUB _INBOX.1.* 1\r\n" + pull
    nothing: Line = (1, ">", b"PING\r\n")
    redelivered = [_deliver(1), *[nothing] * 5000, _deliver(2), (1, ">", encode.pub(ACK % 2, b"+ACK"))]
    play = Play([*hello(1, "a"), (1, ">", start), *redelivered])
    play.open(1, "a")
    assert b"MSG " in play.send(1, start)
    assert play.machine.omitted() == []
    assert [one.frame.subject for one in play.machine.unused()] == [ACK % 2]
    play.wait(10_000_000_000)
    play.send(1, _call(b"CONSUMER.MSG.NEXT.S.C"))
    assert [one.frame.subject for one in play.machine.omitted()] == [ACK % 2]


def test_an_in_progress_ack_comes_when_it_likes() -> None:
    play = Play([*hello(1, "a"), (1, ">", encode.pub(ACK % 1, b"+ACK"))])
    play.open(1, "a")
    play.send(1, encode.pub(ACK % 1, b"+WPI") * 2 + encode.pub(ACK % 1, b"+ACK"))
    assert play.machine.mismatches == []
    assert play.machine.omitted() == []
