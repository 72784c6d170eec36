"""Programs recorded against a real server run the same against the capture, with no server."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError
from natsproxy.replay.errors import ReplayError
from natsproxy.replay.server_playback.server import CassetteServer
from tests.replay.kit import NAMES, PROGRAMS, cassette, record_program, run_program, stalls
from tests.replay.scripted import hello, write


async def _plays(name: str, folder: Path, *, at_once: int, times: int) -> None:
    """Record a program, then run it in fresh processes, each against a cassette of its own."""
    program, capture = PROGRAMS / f"{name}.py", folder / "x.ncap"
    printed = await record_program(program, capture)
    assert printed

    async def key() -> None:
        for _ in range(times):
            async with cassette(capture) as server:
                assert await run_program(program, server.url) == printed
                assert [str(mismatch) for mismatch in server.mismatches] == []
                assert [exchange.frame.line for exchange in server.unused()] == []

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(key)


@pytest.mark.server
@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_program_runs_the_same_without_a_server(name: str, tmp_path: Path) -> None:
    await _plays(name, tmp_path, at_once=1, times=1)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
async def test_twenty_times_the_same(name: str, tmp_path: Path) -> None:
    await _plays(name, tmp_path, at_once=2, times=10)


@pytest.mark.server
async def test_an_unrecorded_frame_is_named_with_the_nearest_recorded_ones(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    await record_program(PROGRAMS / "core.py", capture)
    async with cassette(capture) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.address.port)
        async with stream:
            await stream.send_all(
                b'CONNECT {"verbose":false,"name":"core","headers":true}\r\nSUB orders.new 7\r\n'
                b"PUB orders.eu.1 5\r\nwrong\r\nPUB orders.eu.0 4\r\neu 0\r\n"
                b"PUB orders.eu.0 4\r\neu 0\r\nPING\r\n"
            )
            received = b""
            with trio.fail_after(5):
                while b"PONG" not in received:
                    received += await stream.receive_some()
        assert received.count(b"-ERR 'Permissions Violation for Publish to") == 2
        wrong, again = (str(mismatch) for mismatch in server.mismatches)
        assert "PUB orders.eu.1 'wrong'" in wrong
        assert "nearest (not used): PUB orders.eu.1 'eu 1'" in wrong
        assert "recorded, but used already: PUB orders.eu.0 'eu 0'" in again


@pytest.mark.server
async def test_the_wait_for_clients_ends_and_names_the_awaited_frame(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    await record_program(PROGRAMS / "core.py", capture)
    async with cassette(capture) as server:
        with pytest.raises(ReplayError, match=r"0\.05 s.*SUB orders\.new.*client 'core'.*and 12 more"):
            await server.finished(0.05)


async def test_an_address_in_use_is_reported(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot listen on"):
            await CassetteServer(capture, listen=Address("127.0.0.1", port)).serve()


def test_pass_needs_an_upstream(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only with an upstream"):
        CassetteServer(tmp_path / "x.ncap", unrecorded="pass")


async def test_a_client_that_does_not_read_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unread bytes of a client are bounded; then nothing more is read from it, and the wait ends."""
    monkeypatch.setattr("natsproxy.replay.server_playback.server.BACKLOG", 1 << 20)
    size, lines = 1 << 20, hello(1, "a")
    message = b"%d\r\n%b\r\n" % (size, bytes(size))
    lines.append((1, ">", b"SUB a 1\r\n"))
    for _ in range(20):
        lines += [(1, ">", b"PUB a " + message), (1, "<", b"MSG a 1 " + message)]
    async with cassette(write(tmp_path / "x.ncap", lines)) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.address.port)
        sent = b'CONNECT {"verbose":false,"name":"a"}\r\nSUB a 1\r\n' + (b"PUB a " + message) * 20
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            await stalls(server, "waiting for client 1 to read")
            assert server.machine.progress.played < 40
            nursery.cancel_scope.cancel()
