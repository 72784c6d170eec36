"""Many clients come at once, and some give up: nothing is done for those, or the others would wait for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.capture.format.records import OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.recording import RecordSettings
from natsproxy.events import Closed, Opened
from tests.benchmarks import bench_storm
from tests.kit.servers import NatsServer
from tests.kit.stage import INFO, receive, stage

GONE = 100
CLIENTS = 1_500


@pytest.fixture(params=["native", "python"])
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)


@pytest.mark.usefixtures("_plane")
async def test_no_server_is_dialled_for_clients_that_left(tmp_path: Path) -> None:
    """They are ends, each with its number, and no recording has them."""
    file = tmp_path / "c.ncap"
    async with stage(record=RecordSettings(file)) as made:
        events: list[object] = []
        made.proxy.subscribe(events.append)
        port = made.proxy.listen[0].port
        for end in range(GONE):
            with socket.create_connection(("127.0.0.1", port)) as client:
                if end % 2:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # with RST
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            server = await made.listener.accept()
            async with server:
                await server.send_all(INFO)
                assert (await client.receive_some()).startswith(b"INFO")
                await client.send_all(b"PING\r\n")
                assert await receive(server, 6) == b"PING\r\n"
            await client.send_eof()
            await made.end_of(GONE + 1)
        with trio.move_on_after(0):
            await made.listener.accept()
            pytest.fail("a server was dialled for a client that had left")
    ends = {event.conn: event.cause for event in events if isinstance(event, Closed)}
    assert {conn: ends[conn] for conn in range(1, GONE + 1)} == dict.fromkeys(
        range(1, GONE + 1), close_reasons.CLIENT_CLOSED
    )
    assert [event.conn for event in events if isinstance(event, Opened)] == [GONE + 1]
    assert made.proxy.accepted == GONE + 1
    items = [item for _, item in open_capture(file).items()]
    assert [item.conn for item in items if isinstance(item, OpenRecord)] == [GONE + 1]


@pytest.mark.usefixtures("_plane")
async def test_a_client_that_leaves_before_the_info_of_its_server_is_let_go() -> None:
    async with stage() as made:
        events: list[object] = []
        made.proxy.subscribe(events.append)
        client = await trio.open_tcp_stream("127.0.0.1", made.proxy.listen[0].port)
        server = await made.listener.accept()
        await client.aclose()
        async with server:
            await server.send_all(INFO)
            assert await server.receive_some() == b""
        assert await made.end_of(1) == close_reasons.CLIENT_CLOSED
        assert not [event for event in events if isinstance(event, Opened)]


@pytest.mark.usefixtures("_plane")
async def test_the_last_words_of_a_client_that_left_reach_a_server() -> None:
    """It has left only once they are read."""
    async with stage() as made:
        with socket.create_connection(("127.0.0.1", made.proxy.listen[0].port)) as client:
            client.sendall(b"PUB a 1\r\nx\r\n")
        async with await made.listener.accept() as server:
            await server.send_all(INFO)
            assert await receive(server, 12) == b"PUB a 1\r\nx\r\n"


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize("row", bench_storm.OF_NATSPROXY)
def test_all_clients_of_a_storm_are_connected(row: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer())
        port, _ = stack.enter_context(bench_storm.way(row, server))
        command = [sys.executable, bench_storm.__file__, "storm", str(port), str(CLIENTS)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
        )
    assert json.loads(done.stdout)["up"] == CLIENTS
