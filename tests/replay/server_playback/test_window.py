"""Recorded frames that are read after their turn reach the client all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.replay.server_playback.actions import DisconnectClient
from natsproxy.replay.server_playback.progress import WINDOW
from tests.replay.kit import cassette, stalls
from tests.replay.scripted import MS, Line, connect, hello, write
from tests.replay.server_playback.playing import Play

INFO = b"$JS.API.STREAM.INFO.S"
NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.C"
A, B, C, D = (b"_INBOX.%b" % (letter * 21 + b"1") for letter in (b"A", b"B", b"C", b"D"))
LARGE = b"PUB large 9000\r\n%b\r\n" % bytes(9000)
"""A frame that fills a small window alone."""


def ask(subject: bytes, reply: bytes, body: bytes = b"") -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body)


def settle(play: Play) -> None:
    """Tick as long as something is due."""
    while play.machine.deadline is not None and play.machine.deadline <= play.now:
        play.wait(0)


def test_messages_without_further_requests_all_come() -> None:
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB n 1\r\n")]
    lines += [(1, "<", b"MSG n 1 3\r\n%03d\r\n" % n) for n in range(200)]
    play = Play(lines, window=2000)
    play.open(1, "a")
    play.send(1, b"SUB n 1\r\n")
    settle(play)
    assert play.got[1].endswith(b"".join(b"MSG n 1 3\r\n%03d\r\n" % n for n in range(200)))
    assert play.machine.done


async def test_a_stream_of_many_windows_waits_for_a_client_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproxy.replay.server_playback.server.BACKLOG", 1 << 20)
    message, count = b"MSG a 1 %d\r\n%b\r\n" % (1 << 18, bytes(1 << 18)), 100
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB a 1\r\n"), *[(1, "<", message)] * count]
    async with cassette(write(tmp_path / "x.ncap", lines), window=1 << 19) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.address.port)
        async with stream:
            await stream.send_all(connect("a") + b"SUB a 1\r\n")
            await stalls(server, "waiting for client 1 to read")
            assert server.machine.progress.played < count
            received = 0
            with trio.fail_after(10):
                while received < count * len(message):
                    received += len(await stream.receive_some(1 << 20))
        with trio.fail_after(10):
            await server.finished()


def test_a_pull_that_does_not_wait_gets_the_messages_that_are_read_for_it() -> None:
    body = b'{"batch":5,"no_wait":true}'
    messages = [b"MSG s.x 1 $JS.ACK.S.C.1.%d.%d.17.0 2\r\nmm\r\n" % (n, n) for n in range(5)]
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB %b.* 1\r\n" % A),
        (1, ">", ask(NEXT, A + b".0", body)),
    ]
    lines += [(1, "<", message) for message in messages]
    play = Play(lines, window=1000)
    play.open(1, "a")
    play.send(1, b"SUB %b.* 1\r\n" % B)
    play.send(1, ask(NEXT, B + b".0", body))
    settle(play)
    assert play.got[1].endswith(b"".join(messages))


def test_a_poll_gets_an_answer_again_that_was_read_after_the_first_one() -> None:
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB %b.* 1\r\n" % A), (1, ">", ask(INFO, A + b".0"))]
    lines += [(1, "<", b"MSG %b.0 1 3\r\none\r\n" % A)]
    play = Play(lines, window=1000)
    play.open(1, "a")
    play.send(1, b"SUB %b.* 1\r\n" % B)
    for n in range(3):
        assert play.send(1, ask(INFO, b"%b.%d" % (B, n))) == b"MSG %b.%d 1 3\r\none\r\n" % (B, n)


def test_an_answer_goes_to_the_worker_that_asked() -> None:
    lines: list[Line] = [*hello(1, "w"), *hello(2, "w"), (1, ">", b"SUB %b.* 1\r\n" % A)]
    lines += [(2, ">", b"SUB %b.* 1\r\n" % B), (1, ">", ask(b"ask", A + b".0"))]
    lines += [(1, "<", b"MSG %b.0 1 3\r\none\r\n" % A)]
    play = Play(lines, window=1400)
    play.open(1, "w")
    play.open(2, "w")
    play.send(1, b"SUB %b.* 7\r\n" % D)
    play.send(2, b"SUB %b.* 9\r\n" % C)
    assert play.send(2, ask(b"ask", C + b".0")) == b"MSG %b.0 9 3\r\none\r\n" % C


@pytest.mark.parametrize("window", [2000, WINDOW])
def test_the_end_of_a_connection_waits_for_the_answer_to_a_poll_that_came(window: int) -> None:
    lines: list[Line] = [*hello(1, "a"), *hello(2, "b"), (1, ">", b"SUB %b.* 1\r\n" % A)]
    lines += [(1, ">", ask(INFO, A + b".0")), (1, ">", b"PUB p 0\r\n\r\n"), (2, ">", LARGE)]
    lines += [(2, "<", b"PONG\r\n")] * 10
    lines += [(1, "<", b"MSG %b.0 1 3\r\none\r\n" % A), (1, "closed", b"server-closed")]
    play = Play(lines, window=window, timing="recorded")
    play.open(1, "a")
    play.open(2, "b")
    play.send(1, b"SUB %b.* 1\r\nPUB p 0\r\n\r\n" % B)
    play.wait(10 * MS)
    play.send(1, ask(INFO, B + b".0"))
    play.send(2, LARGE)
    while play.machine.deadline is not None and not play.other:
        assert not play.machine.done
        play.wait(MS)
    assert play.got[1].endswith(b"MSG %b.0 1 3\r\none\r\n" % B)
    assert play.other == [DisconnectClient(1)]
    assert play.machine.done
