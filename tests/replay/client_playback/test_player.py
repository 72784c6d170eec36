"""Recorded programs played to a fresh server say the same there."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError
from natsproxy.replay.client_playback.batches import batches
from natsproxy.replay.client_playback.playback import ClientPlayback
from natsproxy.replay.client_playback.player import ClientPlayer
from natsproxy.replay.diff.compare import compare
from tests.replay.kit import NAMES, PROGRAMS, nats_server, record_program, recording
from tests.replay.scripted import MS, hello, write


@pytest.mark.server
@pytest.mark.parametrize("replays", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
async def test_replays_of_a_program_and_of_its_replay_equal_the_recording(
    name: str, replays: int, tmp_path: Path
) -> None:
    captures = [tmp_path / f"{n}.ncap" for n in range(replays + 1)]
    await record_program(PROGRAMS / f"{name}.py", captures[0])
    for n in range(1, replays + 1):
        async with nats_server() as server, recording(captures[n], server) as url:
            machine = ClientPlayback(batches(captures[0]))
            player = ClientPlayer(machine, Address("127.0.0.1", int(url.rsplit(":", 1)[1])))
            with trio.fail_after(60):
                await player.run()
        assert [str(missing) for missing in machine.missing] == []
        report = compare(captures[n - 1], captures[n])
        assert [(row.group, row.sample) for row in report.rows if not row.same] == []


async def test_a_server_that_is_not_there_is_reported(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(ConfigError, match=f"cannot connect to nats://127.0.0.1:{port}"):
        await ClientPlayer(ClientPlayback(batches(capture)), Address("127.0.0.1", port)).run()


async def _scripted(answers: bytes, capture: Path) -> ClientPlayback:
    machine = ClientPlayback(batches(capture))

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(answers)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        try:
            await ClientPlayer(machine, Address("127.0.0.1", port)).run()
        finally:
            nursery.cancel_scope.cancel()
    return machine


async def test_bytes_of_the_server_that_are_not_nats_are_reported(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"SUB a 1\r\nPUB a 0\r\n\r\n")])
    machine = await _scripted(b"INFO {}\r\nPONG\r\nMSG a\r\n", capture)
    assert "bytes that are not NATS (s2c byte" in str(machine.missing[0])


async def test_an_interrupted_replay_leaves_no_connection(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n")], step=10**6 * MS)
    gone = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"INFO {}\r\nPONG\r\n")
        interrupted.cancel()
        with suppress(trio.BrokenResourceError):
            async for _ in stream:
                pass
        gone.set()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        address = Address("127.0.0.1", listener.socket.getsockname()[1])
        with trio.CancelScope() as interrupted:
            await ClientPlayer(ClientPlayback(batches(capture)), address).run()
        with trio.fail_after(5):
            await gone.wait()
        nursery.cancel_scope.cancel()
