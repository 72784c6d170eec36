"""Causes of server frames, on scripted conversations."""

from __future__ import annotations

from natsproxy.replay.conversation.causes import Cause, Causes, Timing
from natsproxy.replay.conversation.frame_kind import kind_of
from natsproxy.replay.conversation.steps import Step
from natsproxy.wire.ops import C2S, Op
from tests.replay.scripted import Line, events

CREATE = b'{"config":{"deliver_subject":"dlv"}}'


def status(inbox: bytes, text: bytes) -> bytes:
    block = b"NATS/1.0 %b\r\n\r\n" % text
    return b"HMSG %b 1 %d %d\r\n%b\r\n" % (inbox, len(block), len(block), block)


def causes(*lines: Line) -> list[tuple[str, Cause]]:
    """Return the cause of each server frame; seqs count the frames from 0."""
    finder = Causes()
    found = []
    for step in events(list(lines)):
        assert isinstance(step, Step)
        if step.direction == C2S:
            if step.frame.op in (Op.PUB, Op.HPUB, Op.SUB):
                finder.sent(step, kind_of(step.frame))
        else:
            found.append((step.frame.subject.decode(), finder.of(step)))
    return found


def test_a_forwarded_message_comes_from_its_publish_of_another_connection() -> None:
    found = causes(
        (1, ">", b"SUB a 1\r\n"),
        (2, ">", b"PUB a 1\r\nx\r\n"),
        (2, ">", b"PUB z 0\r\n\r\n"),
        (1, "<", b"MSG a 1 1\r\nx\r\n"),
    )
    assert found == [("a", Cause((1,)))]


def test_the_second_copy_comes_from_the_second_publish() -> None:
    twice = b"PUB a 1\r\nx\r\n" * 2
    found = causes(
        (1, ">", b"SUB a 1\r\nSUB > 2\r\n" + twice),
        (1, "<", b"MSG a 1 1\r\nx\r\nMSG a 2 1\r\nx\r\nMSG a 1 1\r\nx\r\n"),
    )
    assert [cause.after for _, cause in found] == [(2,), (2,), (3,)]


def test_a_copy_comes_from_a_publish_since_its_subscription() -> None:
    """A client that comes back after a restart, and says the same again."""
    again = b"SUB a 1\r\nPUB a 1\r\nx\r\n"
    found = causes(
        (1, ">", again),
        (1, "<", b"MSG a 1 1\r\nx\r\n"),
        (2, ">", again),
        (2, "<", b"MSG a 1 1\r\nx\r\n"),
    )
    assert [cause.after for _, cause in found] == [(1,), (4,)]


def test_an_answer_comes_from_its_request() -> None:
    found = causes((1, ">", b"SUB i 1\r\nPUB q i 0\r\n\r\nPUB r 0\r\n\r\n"), (1, "<", b"MSG i 1 2\r\nok\r\n"))
    assert found == [("i", Cause((1,)))]


def test_a_delivery_comes_from_its_publish_and_its_pull_request() -> None:
    found = causes(
        (1, ">", b"SUB i 1\r\nPUB s 1\r\nx\r\nPUB $JS.API.CONSUMER.MSG.NEXT.S.C i 0\r\n\r\n"),
        (1, "<", b"MSG s 1 $JS.ACK.S.C.1.1.1.99.0 1\r\nx\r\n"),
        (1, ">", b"PUB $JS.ACK.S.C.1.1.1.99.0 4\r\n-NAK\r\n"),
        (1, "<", b"MSG s 1 $JS.ACK.S.C.2.1.2.99.0 1\r\nx\r\n"),
        (1, "<", b"MSG s 1 $JS.ACK.S.D.2.9.2.99.0 1\r\nx\r\n"),
    )
    assert found[0][1] == Cause((1, 2), Timing.ANSWER, True, (b"S", b"C"))
    assert found[1][1] == Cause((4, 2), Timing.ANSWER, True, (b"S", b"C"))
    assert found[2][1].timing is Timing.TIMED


def test_a_push_delivery_comes_from_the_creation_of_its_consumer() -> None:
    create = b"PUB $JS.API.CONSUMER.CREATE.S i %d\r\n%b\r\n" % (len(CREATE), CREATE)
    found = causes(
        (1, ">", b"SUB dlv 1\r\n" + create + b"PUB other 0\r\n\r\n"),
        (1, "<", b"MSG s 1 $JS.ACK.S.eph.1.1.1.99.0 1\r\nx\r\n"),
        (1, "<", b"HMSG dlv 1 30 30\r\nNATS/1.0 100 Idle Heartbeat\r\n\r\n\r\n".replace(b"30 30", b"31 31")),
    )
    assert found[0][1].after == (1,)
    assert found[1][1].timing is Timing.LIVE


def test_the_end_of_a_pull_request_is_up_to_the_live_one() -> None:
    pull = b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C i 0\r\n\r\nPUB q j 0\r\n\r\n"
    found = causes(
        (1, ">", b"SUB i 1\r\nSUB j 2\r\n" + pull),
        *(
            (1, "<", status(inbox, text))
            for inbox in (b"i", b"j")
            for text in (b"404 No Messages", b"408 Late")
        ),
        (1, "<", status(b"i", b"409 Consumer Deleted")),
    )
    timings = [cause.timing for _, cause in found]
    assert timings == [Timing.LIVE, Timing.LIVE, Timing.ANSWER, Timing.ANSWER, Timing.TIMED]


def test_a_poll_causes_nothing_but_its_answer() -> None:
    ask = b"PUB $JS.API.STREAM.INFO.S i 0\r\n\r\n"
    found = causes(
        (1, ">", b"PUB work 0\r\n\r\nSUB _INBOX.x 1\r\n" + ask),
        (1, "<", b"MSG i 1 2\r\nok\r\nMSG news 2 2\r\nok\r\n"),
    )
    assert found == [("i", Cause((2,))), ("news", Cause((0,)))]


def test_a_delayed_nak_is_timed() -> None:
    found = causes(
        (1, ">", b'PUB $JS.ACK.S.C.1.1.1.9.0 13\r\n-NAK {"d":12}\r\n'),
        (1, "<", b"MSG s 1 $JS.ACK.S.C.2.1.2.9.0 1\r\nx\r\n"),
    )
    assert found[0][1].timing is Timing.TIMED


def test_an_error_comes_from_the_last_frame() -> None:
    found = causes((1, ">", b"SUB a 1\r\nPUB b 0\r\n\r\n"), (1, "<", b"-ERR 'no'\r\n"))
    assert found[0][1] == Cause((1,))
