"""Every wait of a playback of clients ends, and names its requirement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.play import Play
from tests.replay.scripted import Line, hello

ACK = b"$JS.ACK.S.C.1.7.1.11.0"
WAITS: list[tuple[list[Line], str, str]] = [
    (
        [(1, ">", b"SUB a 1\r\n"), (1, "<", b"MSG a 1 0\r\n\r\n"), (1, ">", b"PUB b 0\r\n\r\n")],
        "1 PUB b",
        "message 1 on subscription 1",
    ),
    (
        [
            (1, ">", b"SUB i.* 1\r\nPUB $JS.API.STREAM.CREATE.S i.1 2\r\n{}\r\n"),
            (1, "<", b"MSG i.1 1 2\r\n{}\r\n"),
            (2, ">", b"PUB s 0\r\n\r\n"),
        ],
        "1 PUB s",
        "the JetStream API's answer on i.1",
    ),
    (
        [
            (1, ">", b"SUB q group 1\r\n"),
            (2, ">", b"PUB q inb 0\r\n\r\n"),
            (1, "<", b"MSG q 1 inb 0\r\n\r\n"),
            (1, ">", b"PUB inb 0\r\n\r\n"),
        ],
        "PUB inb",
        "the request on inb",
    ),
    (
        [(1, ">", b"SUB a.* 1\r\n"), (2, ">", b"PUB a.x 0\r\n\r\n")],
        "1 PUB a.x",
        "the subscription to a.* of connection 1",
    ),
    ([(1, ">", b"PUB %b 4\r\n+ACK\r\n" % ACK)], f"PUB {ACK.decode()}", f"the delivery of {ACK.decode()}"),
    ([(1, ">", b"PUB a 0\r\n\r\n")], "its end", "a PONG"),
]


@pytest.mark.parametrize(
    ("lines", "frame", "need"), WAITS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_wait_in_vain_names_its_requirement(lines: list[Line], frame: str, need: str) -> None:
    play = Play([*hello(1, "a"), *hello(2, "b"), *lines])
    play.go()
    play.give_up()
    assert (frame, need) in [(missing.frame, missing.requirement) for missing in play.machine.missing]
    sent = b"".join(play.sent.values())
    assert all(data in sent for _, kind, data in lines if kind == ">")


SAID = [
    b"SUB a 1\r\n",
    b"SUB a.* 2\r\n",
    b"SUB q g 3\r\n",
    b"SUB _INBOX.x.* 4\r\n",
    b"UNSUB 1\r\n",
    b"UNSUB 2 3\r\n",
    b"PUB a 0\r\n\r\n",
    b"PUB a.b 1\r\nx\r\n",
    b"PUB q _INBOX.x.1 0\r\n\r\n",
    b"PUB _INBOX.x.1 0\r\n\r\n",
    b"PUB %b 0\r\n\r\n" % ACK,
    b"PUB $JS.API.STREAM.INFO.S _INBOX.x.2 0\r\n\r\n",
    b"PING\r\n",
]
SERVER_FRAMES = [
    b"MSG a 1 0\r\n\r\n",
    b"MSG a.b 2 1\r\nx\r\n",
    b"MSG q 3 _INBOX.x.1 0\r\n\r\n",
    b"MSG _INBOX.x.1 4 0\r\n\r\n",
    b"MSG s 1 %b 0\r\n\r\n" % ACK,
    b"MSG _INBOX.x.2 4 2\r\n{}\r\n",
    b"-ERR 'oops'\r\n",
    b"PONG\r\n",
]
CONNS = st.integers(1, 3)
CONVERSATION = st.lists(
    st.one_of(
        st.tuples(CONNS, st.just(">"), st.sampled_from(SAID)),
        st.tuples(CONNS, st.just("<"), st.sampled_from(SERVER_FRAMES)),
        st.tuples(CONNS, st.just("closed"), st.just(b"client-closed")),
    ),
    max_size=25,
)


@given(
    CONVERSATION,
    st.lists(st.tuples(CONNS, st.sampled_from([*SERVER_FRAMES, b"PING\r\n"])), max_size=10),
    st.booleans(),
)
def test_no_conversation_and_no_server_makes_it_wait_for_ever(
    lines: list[Line], answers: list[tuple[int, bytes]], recorded_speed: bool
) -> None:
    start = [line for conn in (1, 2, 3) for line in hello(conn, "x")]
    play = Play([*start, *lines], speed=1.0 if recorded_speed else None)
    play.go()
    for conn, data in answers:
        if conn in play.sent:
            play.receive(conn, data)
    play.give_up()
    assert play.machine.done
    assert all(missing.requirement for missing in play.machine.missing)
