"""The playback of clients on scripted conversations: no sockets, no clock."""

from __future__ import annotations

from collections.abc import Iterator

from natsproxy.replay.client_playback.playback import ClientPlayback
from natsproxy.replay.client_playback.state import Dial, Write
from natsproxy.replay.conversation.steps import Event
from tests.replay.play import PATIENCE, Play
from tests.replay.scripted import MS, events, hello, named


def test_pings_and_pongs_of_the_recording_are_not_sent_and_subs_are_fenced() -> None:
    play = Play([*hello(1, "a"), (1, ">", b"PONG\r\nSUB a 1\r\nPING\r\n")])
    play.go()
    fence, end = b"PING\r\n", b"PING\r\n"
    assert play.sent == {1: b"SUB a 1\r\n" + fence + end}


def test_a_frame_waits_for_the_message_that_it_answered() -> None:
    play = Play(
        [
            *hello(1, "a"),
            (1, ">", b"SUB a 1\r\nPUB a 0\r\n\r\n"),
            (1, "<", b"MSG a 1 0\r\n\r\n"),
            (1, ">", b"PUB b 0\r\n\r\n"),
        ]
    )
    play.go()
    assert b"PUB b" not in play.sent[1]
    play.receive(1, b"PONG\r\nMSG a 1 0\r\n\r\n")
    assert b"PUB b" in play.sent[1]


def test_a_wait_ends_and_names_its_requirement() -> None:
    play = Play(
        [
            *hello(1, "a"),
            (1, ">", b"SUB a 1\r\n"),
            (1, "<", b"MSG a 1 0\r\n\r\n"),
            (1, ">", b"PUB b 0\r\n\r\n"),
        ]
    )
    play.go()
    assert play.machine.deadline == PATIENCE
    play.go(PATIENCE)
    assert b"PUB b" in play.sent[1]
    assert (
        str(play.machine.missing[0]) == "connection 1: 1 PUB b waited in vain for message 1 on subscription 1"
    )


def test_a_wait_counts_from_when_another_connection_has_sent_its_cause() -> None:
    """However long that takes: here `patience` for each of several calls of `advance`."""
    times = 8000
    play = Play(
        [
            *hello(1, "a"),
            *hello(2, "b"),
            (1, ">", b"SUB a 1\r\n"),
            (2, ">", b"PUB a 1000\r\n%b\r\n" % bytes(1000) * times),
            (1, "<", b"MSG a 1 1000\r\n%b\r\n" % bytes(1000) * times),
            (1, ">", b"PUB done 0\r\n\r\n"),
        ]
    )
    while play.advance():
        pass
    assert play.machine.received(named(1), b"PONG\r\n") == []
    turns = 0
    while play.machine.sent < 1 + times:
        play.advance(PATIENCE)
        turns += 1
    assert turns > 5
    play.advance(PATIENCE // 2)
    play.advance(PATIENCE // 4)
    assert play.machine.missing == []
    assert b"PUB done" not in play.sent[1]
    play.advance(PATIENCE)
    assert [missing.frame for missing in play.machine.missing] == ["1 PUB done"]


def test_a_wait_counts_from_when_its_cause_was_given_up() -> None:
    """A connection that waits itself holds another back only where it may be the cause."""
    play = Play(
        [
            *(line for conn in (1, 2, 3) for line in hello(conn, "x")),
            (1, ">", b"SUB never 1\r\n"),
            (2, ">", b"SUB a.* 1\r\n"),
            (3, ">", b"SUB other 1\r\n"),
            (1, "<", b"MSG never 1 0\r\n\r\n"),
            (1, ">", b"PUB a.b 0\r\n\r\n"),
            (2, "<", b"MSG a.b 1 0\r\n\r\n"),
            (2, ">", b"PUB x 0\r\n\r\n"),
            (3, "<", b"MSG other 1 0\r\n\r\n"),
            (3, ">", b"PUB y 0\r\n\r\n"),
        ]
    )
    play.go()
    for conn in (1, 2, 3):
        play.receive(conn, b"PONG\r\n" * 5)
    while not play.machine.missing:
        assert play.machine.deadline is not None
        play.go(play.machine.deadline - play.now)
    play.go(PATIENCE // 4)
    assert [missing.frame for missing in play.machine.missing] == ["1 PUB a.b", "1 PUB y"]
    assert b"PUB x" not in play.sent[2]
    play.receive(2, b"MSG a.b 1 0\r\n\r\n")
    assert b"PUB x" in play.sent[2]


def test_a_publish_waits_until_the_server_knows_the_subscription_of_another() -> None:
    play = Play([*hello(1, "a"), *hello(2, "b"), (1, ">", b"SUB a.* 1\r\n"), (2, ">", b"PUB a.x 0\r\n\r\n")])
    play.go()
    assert play.sent[2] == b""
    play.receive(1, b"PONG\r\n")
    assert play.sent[2].startswith(b"PUB a.x")


def test_the_schedule_is_absolute_and_scaled() -> None:
    play = Play([*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n"), (1, ">", b"PUB b 0\r\n\r\n")], speed=0.5)
    play.go()
    assert play.machine.deadline == 4 * MS
    play.go(8 * MS)
    assert play.sent[1] == b"PUB a 0\r\n\r\n"
    assert play.machine.deadline == 10 * MS
    play.go(5 * MS)
    assert b"PUB b 0\r\n\r\n" in play.sent[1]
    assert play.machine.lag.last == 3 * MS


def test_live_pings_and_flow_control_are_answered() -> None:
    play = Play([*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n"), (1, ">", b"PUB $JS.FC.S.C.abcd 0\r\n\r\n")])
    play.go()
    head = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    play.receive(1, b"PING\r\nHMSG d 1 $JS.FC.S.C.wxyz %d %d\r\n%b\r\n" % (len(head), len(head), head))
    assert b"PONG\r\nPUB $JS.FC.S.C.wxyz 0\r\n\r\n" in play.sent[1]
    assert b"abcd" not in play.sent[1]


def test_acks_carry_the_live_subject_and_the_live_consumer() -> None:
    created = b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"%b"}'
    play = Play(
        [
            *hello(1, "a"),
            (1, ">", b"SUB i.* 1\r\nPUB $JS.API.CONSUMER.CREATE.S i.1 2\r\n{}\r\n"),
            (1, "<", b"MSG i.1 1 %d\r\n%b\r\n" % (len(created % b"recorded"), created % b"recorded")),
            (1, "<", b"MSG s 1 $JS.ACK.S.recorded.1.7.1.11.0 1\r\nx\r\n"),
            (1, ">", b"PUB $JS.ACK.S.recorded.1.7.1.11.0 4\r\n+ACK\r\n"),
            (1, ">", b"PUB $JS.API.CONSUMER.DELETE.S.recorded 0\r\n\r\n"),
        ]
    )
    play.go()
    play.receive(1, b"PONG\r\nMSG i.1 1 %d\r\n%b\r\n" % (len(created % b"livelive"), created % b"livelive"))
    play.receive(1, b"MSG s 1 $JS.ACK.S.livelive.1.7.1.99.0 1\r\nx\r\n")
    assert b"PUB $JS.ACK.S.livelive.1.7.1.99.0 4\r\n+ACK\r\n" in play.sent[1]
    assert b"PUB $JS.API.CONSUMER.DELETE.S.livelive 0\r\n" in play.sent[1]


def test_a_connection_leaves_behind_a_fence() -> None:
    play = Play([*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n"), (1, "closed", b"client-closed")])
    play.go()
    assert play.sent[1] == b"PUB a 0\r\n\r\nPING\r\n"
    assert play.left == []
    play.receive(1, b"PONG\r\n")
    assert play.left == [1]
    assert play.machine.done


def test_frames_recorded_after_an_end_wait_for_it() -> None:
    play = Play(
        [
            *hello(1, "a"),
            *hello(2, "b"),
            (1, ">", b"SUB a 1\r\n"),
            (1, "closed", b"client-closed"),
            (2, ">", b"PUB a 0\r\n\r\n"),
        ]
    )
    play.go()
    assert play.sent[2] == b""
    play.receive(1, b"PONG\r\n")
    play.receive(1, b"PONG\r\n")
    assert play.left == [1]
    play.go()
    assert play.sent[2].startswith(b"PUB a")


def test_a_lost_connection_is_reported_and_stops_no_other() -> None:
    play = Play(
        [
            *hello(1, "a"),
            *hello(2, "b"),
            (1, ">", b"SUB a 1\r\n"),
            (1, "<", b"MSG a 1 0\r\n\r\n"),
            (1, ">", b"PUB x 0\r\n\r\n"),
            (2, ">", b"PUB y 0\r\n\r\n"),
        ]
    )
    play.go()
    play.machine.lost(named(1), "reset")
    play.go()
    assert play.sent[2].startswith(b"PUB y")
    assert "its connection: reset" in str(play.machine.missing[0])


def test_only_the_chosen_connections_are_played() -> None:
    play = Play(
        [*hello(1, "a"), *hello(2, "b"), (1, ">", b"PUB x 0\r\n\r\n"), (2, ">", b"PUB y 0\r\n\r\n")],
        keep=lambda conn: conn == named(2),
    )
    play.go()
    assert list(play.sent) == [2]


def test_a_schedule_is_read_a_little_ahead_only() -> None:
    read = []

    def source() -> object:
        for event in events([*hello(1, "a"), *((1, ">", b"PUB a 0\r\n\r\n") for _ in range(5000))]):
            read.append(event)
            yield event

    machine = ClientPlayback(source(), speed=1.0)  # type: ignore[arg-type]
    assert machine.advance(0) == []
    assert 200 < len(read) < 300
    for now in (0, 150 * MS, 300 * MS):
        while machine.advance(now) or machine.deadline == now:
            machine.connected(named(1))
        assert machine.deadline is not None
        assert now < machine.deadline
        assert len(read) < (now + 260 * MS) // MS
    assert len(read) > 500


def test_reading_is_bounded_by_the_window() -> None:
    read = []

    def source() -> object:
        for event in events([*hello(1, "a"), *((1, ">", b"PUB a 0\r\n\r\n") for _ in range(1000))]):
            read.append(event)
            yield event

    machine = ClientPlayback(source(), window=4096)  # type: ignore[arg-type]
    machine.advance(0)
    assert len(read) < 100


def test_connections_without_frames_are_read_in_a_window() -> None:
    """Else a capture of a million connections that did nothing would be read as a whole."""
    count, window = 2000, 1 << 16
    lines = [
        line for conn in range(count) for line in (*hello(conn, "a"), (conn, "closed", b"client_closed"))
    ]
    read = 0

    def counted() -> Iterator[Event]:
        nonlocal read
        for event in events(lines):
            read += 1
            yield event

    machine = ClientPlayback(counted(), window=window)
    machine.advance(0)
    assert 0 < read < count
    dialled = 0
    while not machine.done:
        for action in machine.advance(0):
            if isinstance(action, Dial):
                dialled += 1
                machine.connected(action.conn)
            elif isinstance(action, Write):
                machine.received(action.conn, b"PONG\r\n" * action.data.count(b"PING\r\n"))
    assert dialled == count
