"""Input goes to a real server from the first unrecorded frame on, behind the subscriptions of all clients."""

from __future__ import annotations

from natsproxy.replay.server_playback.actions import ForwardToServer
from tests.replay.scripted import Line, hello
from tests.replay.server_playback.playing import Play

RECORDED: list[Line] = [
    *hello(1, "a"),
    *hello(2, "b"),
    (1, ">", b"SUB x 1\r\nSUB y 2\r\nUNSUB 2\r\nPUB p 0\r\n\r\n"),
    (2, ">", b"SUB z 1\r\n"),
]


def both() -> Play:
    play = Play(RECORDED, unrecorded="pass")
    play.open(1, "a")
    play.open(2, "b")
    return play


def test_recorded_input_stays_here() -> None:
    play = both()
    assert play.send(1, b"SUB x 1\r\nSUB y 2\r\nUNSUB 2\r\nPUB p 0\r\n\r\nPING\r\n") == b"PONG\r\n"
    assert play.send(2, b"SUB z 1\r\n") == b""
    assert play.other == []


def test_the_first_unrecorded_frame_waits_for_the_subscriptions_of_the_others() -> None:
    play = both()
    play.send(1, b"SUB x 1\r\nUNSUB 1 9\r\nUNSUB 1 7\r\nSUB y 2\r\nUNSUB 2\r\n")
    play.send(2, b"SUB z 1\r\nPUB new 0\r\n\r\n")
    assert play.other == [
        ForwardToServer(1, b"SUB x 1\r\nUNSUB 1 7\r\n", barrier=True),
        ForwardToServer(2, b"SUB z 1\r\n"),
        ForwardToServer(2, b"PUB new 0\r\n\r\n"),
    ]


def test_an_unrecorded_subscription_is_new_too() -> None:
    """Messages to it come from programs that nobody recorded."""
    play = both()
    play.send(1, b"SUB x 1\r\n")
    play.send(2, b"SUB new 1\r\n")
    assert play.other == [
        ForwardToServer(1, b"SUB x 1\r\n", barrier=True),
        ForwardToServer(2, b"SUB new 1\r\n"),
    ]


def test_from_then_on_subscriptions_pass_as_they_come() -> None:
    play = both()
    play.send(2, b"PUB new 0\r\n\r\n")
    play.send(1, b"SUB x 1\r\nUNSUB 1 5\r\nPUB p 0\r\n\r\nPUB $JS.FC.S.c 0\r\n\r\nUNSUB 1\r\n")
    assert play.other[1:] == [
        ForwardToServer(1, b"SUB x 1\r\n"),
        ForwardToServer(1, b"UNSUB 1 5\r\n"),
        ForwardToServer(1, b"PUB $JS.FC.S.c 0\r\n\r\n"),
        ForwardToServer(1, b"UNSUB 1\r\n"),
    ]
