"""Dependencies of recorded client frames."""

from __future__ import annotations

from natsproxy.replay.client_playback.dependencies import Dependencies, MessageCount, Planned, counts
from natsproxy.replay.conversation.steps import Step
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C
from natsproxy.wire.parse import frames
from tests.replay.scripted import Line, events, named


def planned(*lines: Line) -> list[Planned]:
    dependencies = Dependencies()
    found = []
    for step in events(list(lines)):
        assert isinstance(step, Step)
        if step.direction == C2S:
            found.append(dependencies.sent(step))
        else:
            dependencies.received(step)
    return found


def one(data: bytes) -> Frame:
    (frame,) = frames(data, S2C)
    return frame


def test_a_frame_waits_for_the_answers_received_before_it() -> None:
    sub, first, second, third = planned(
        (1, ">", b"SUB a 1\r\nPUB a 0\r\n\r\n"),
        (1, "<", b"MSG a 1 0\r\n\r\nMSG a 1 0\r\n\r\n"),
        (1, ">", b"PUB b 0\r\n\r\nPUB c 0\r\n\r\n"),
    )
    assert (sub.counts, first.counts, second.counts, third.counts) == (
        (),
        (),
        (MessageCount(b"1", 2, (b"a",)),),
        (),
    )


def test_an_answer_follows_its_request() -> None:
    request, answer = planned(
        (1, ">", b"PUB q inb 0\r\n\r\n"), (2, "<", b"MSG q 1 inb 0\r\n\r\n"), (2, ">", b"PUB inb 0\r\n\r\n")
    )
    assert (request.after, answer.after) == (-1, 0)


def test_a_publish_to_the_inbox_of_a_pull_is_no_answer() -> None:
    """Nobody received the pull: it was the server's."""
    *_, publish = planned(
        (1, ">", b"SUB inb 1\r\nPUB $JS.API.CONSUMER.MSG.NEXT.S.C inb 0\r\n\r\nPUB inb 0\r\n\r\n")
    )
    assert publish.after == -1


def test_api_answers_bind_all_connections() -> None:
    *_, publish = planned(
        (1, ">", b"SUB i.* 1\r\nPUB $JS.API.STREAM.CREATE.S i.1 2\r\n{}\r\n"),
        (1, "<", b"MSG i.1 1 2\r\n{}\r\n"),
        (2, ">", b"PUB s 0\r\n\r\n"),
    )
    assert publish.api == ((named(1), b"i.1"),)


def test_queue_members_wait_for_nothing_that_chance_decides() -> None:
    *_, publish = planned(
        (1, ">", b"SUB a q 1\r\n"), (1, "<", b"MSG a 1 0\r\n\r\n"), (1, ">", b"PUB b 0\r\n\r\n")
    )
    assert publish.counts == ()


def test_heartbeats_and_redeliveries_do_not_count() -> None:
    assert counts(one(b"MSG s 1 $JS.ACK.S.C.1.1.1.9.0 0\r\n\r\n"))
    assert not counts(one(b"MSG s 1 $JS.ACK.S.C.2.1.2.9.0 0\r\n\r\n"))
    assert not counts(one(b"HMSG i 1 31 31\r\nNATS/1.0 100 Idle Heartbeat\r\n\r\n\r\n"))
    assert counts(one(b"HMSG i 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"))
    assert not counts(one(b"PONG\r\n"))


def test_an_end_waits_for_the_last_messages() -> None:
    dependencies = Dependencies()
    for step in events([(1, ">", b"SUB a 1\r\n"), (1, "<", b"MSG a 1 0\r\n\r\n")]):
        assert isinstance(step, Step)
        (dependencies.sent if step.direction == C2S else dependencies.received)(step)
    assert dependencies.ended(named(1), 9, 5).counts == (MessageCount(b"1", 1, (b"a",)),)
    assert dependencies.ended(named(1), 9, 5).counts == ()
