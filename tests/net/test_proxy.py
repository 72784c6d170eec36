"""The proxy on real sockets before a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
import trio
from click.testing import CliRunner
from nats.errors import NoRespondersError

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from natsproxy.session.session import Session
from natsproxy.session.values import UNLIMITED_WORK, Action, WorkLimit
from natsproxy.units import SECOND
from natsproxy.wire.ops import Direction, Op
from tests.kit.captures import legs
from tests.kit.servers import NatsServer

Program = Callable[[str], Coroutine[Any, Any, None]]


def settings_for(server: NatsServer, record: Path | None = None) -> ProxySettings:
    """Return the settings of a proxy before `server`."""
    # On a busy machine the server's greeting may take more than the default of two seconds; the proxy then
    # closes a client whose bytes it never read, which resets the connection.
    settings = ProxySettings(
        listen=(Listener(),),
        upstream=(Server(Address("127.0.0.1", server.port)),),
        connect_timeout=30 * SECOND,
    )
    return replace(settings, record=RecordSettings(record)) if record else settings


async def through(settings: ProxySettings, program: Program) -> tuple[Proxy, list[Event]]:
    """Run a nats-py program through a proxy, then drain it."""
    proxy = Proxy(settings)
    events: list[Event] = []
    proxy.subscribe(events.append)
    gone = trio.Event()
    proxy.subscribe(lambda event: gone.set() if isinstance(event, Closed) else None)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        await trio.to_thread.run_sync(lambda: asyncio.run(program(f"nats://{address}")))
        with trio.fail_after(10):
            await gone.wait()
        await proxy.drain(5)
    return proxy, events


async def conversation(url: str) -> None:
    """A bit of everything that nats-py does."""
    nc = await nats.connect(url, name="conversation")
    received: list[bytes] = []

    async def on_message(message: Any) -> None:
        received.append(message.data)

    async def answer(message: Any) -> None:
        await message.respond(b"re:" + message.data)

    await nc.subscribe("a.*", cb=on_message)
    await nc.subscribe("service", queue="q", cb=answer)
    for number in range(200):
        await nc.publish("a.b", b"%d" % number)
    big = os.urandom(700_000)
    await nc.publish("a.big", big)
    reply = await nc.request("service", b"question", timeout=5)
    assert reply.data == b"re:question"
    with pytest.raises(NoRespondersError):
        await nc.request("nobody.home", b"", timeout=5)
    await nc.flush()
    js = nc.jetstream()
    stream = f"S{os.getpid()}{nc.client_id}"
    await js.add_stream(name=stream, subjects=[f"{stream}.>"])
    await js.publish(f"{stream}.x", b"stored", headers={"Kind": "test"})
    pull = await js.pull_subscribe(f"{stream}.>", "durable")
    (first,) = await pull.fetch(1, timeout=5)
    await first.nak()
    (again,) = await pull.fetch(1, timeout=5)
    assert again.headers == {"Kind": "test"}
    await again.ack_sync()
    await js.delete_stream(stream)
    await nc.drain()
    assert received == [b"%d" % number for number in range(200)] + [big]


@pytest.mark.server
async def test_a_conversation_is_relayed_and_recorded_byte_for_byte(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """A client receives the same bytes as without the proxy; both legs can be rebuilt from the capture."""
    path = tmp_path / "x.ncap"
    _, events = await through(settings_for(nats_server, path), conversation)

    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.CLIENT_CLOSED
    reader = open_capture(path)
    assert reader.tail() is None
    taps = legs(reader, 1)
    assert taps["client->proxy"] == taps["proxy->server"]
    assert len(taps["client->proxy"]) == closed.c2s_bytes
    info_in, _, rest_in = taps["server->proxy"].partition(b"\r\n")
    info_out, _, rest_out = taps["proxy->client"].partition(b"\r\n")
    assert info_in != info_out  # the proxy's own address
    assert [line for line in rest_in.split(b"\r\n") if not line.startswith(b"INFO")] == [
        line for line in rest_out.split(b"\r\n") if not line.startswith(b"INFO")
    ]
    frames = list(read_frames(reader))
    assert sum(one.frame is not None and one.frame.op == Op.PUB for one in frames) > 200


@pytest.mark.server
async def test_a_capture_is_closed_however_the_proxy_ends(nats_server: NatsServer, tmp_path: Path) -> None:
    """Cancelled in mid-conversation: the index, the footer and the bytes of the client are there."""
    path = tmp_path / "x.ncap"
    proxy = Proxy(settings_for(nats_server, path))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(b'CONNECT {"verbose":false}\r\nPUB a 2\r\nhi\r\nPING\r\n')
            received = b""
            while b"PONG" not in received:
                received += await stream.receive_some(1000)
            nursery.cancel_scope.cancel()
    reader = open_capture(path)
    assert reader.tail() is None
    assert b"PUB a 2" in legs(reader, 1)["client->proxy"]


@pytest.mark.server
async def test_secrets_never_reach_the_disk(tmp_path: Path) -> None:
    """A password is in the CONNECT, and nowhere in the capture."""
    config = 'authorization { user: "u", password: "hunter2secret" }'
    path = tmp_path / "x.ncap"

    async def program(url: str) -> None:
        nc = await nats.connect(url, user="u", password="hunter2secret")
        await nc.flush()
        await nc.close()

    with NatsServer(config) as server:
        await through(settings_for(server, path), program)

    raw = path.read_bytes()
    assert b'"user"' in raw
    assert b"hunter2secret" not in raw


async def test_upstream_down_closes_like_a_dead_server(tmp_path: Path) -> None:
    """The proxy invents nothing: the client sees the end of the stream, and the log has the reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(Server(Address("127.0.0.1", port)),)))
    events: list[Event] = []
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        stream = await trio.open_tcp_stream(address.host, address.port)
        with trio.fail_after(10):
            assert await stream.receive_some(100) == b""
        await stream.aclose()
        await proxy.drain(1)
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.UPSTREAM_DOWN
    assert closed.detail == f"cannot connect to 127.0.0.1:{port}: Connection refused"


@pytest.mark.server
async def test_one_stuck_client_does_not_stop_the_others(nats_server: NatsServer) -> None:
    """A client that never reads fills its own leg only."""
    proxy = Proxy(settings_for(nats_server))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        stuck = await trio.open_tcp_stream(address.host, address.port)
        await stuck.send_all(b'CONNECT {"verbose":false}\r\nSUB flood 1\r\nPING\r\n')

        async def flood(url: str) -> None:
            nc = await nats.connect(url)
            for _ in range(300):
                await nc.publish("flood", bytes(32_000))
            await nc.flush(timeout=20)
            await nc.close()

        url = f"nats://{address}"
        with trio.fail_after(60):
            await trio.to_thread.run_sync(lambda: asyncio.run(flood(url)))
            await trio.to_thread.run_sync(lambda: asyncio.run(conversation(url)))
        backlog = max(relay.client.backlog for relay in proxy.relays.values())
        assert backlog < 1 << 20
        await stuck.aclose()
        await proxy.drain(1)


@pytest.mark.server
def test_the_command_runs_drains_and_reloads(nats_server: NatsServer, tmp_path: Path) -> None:
    """`natsproxy run` as a process: JSON log, SIGHUP, SIGTERM, exit code 0, a closed capture."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "no"\nkind = "deny"\nsubject = ["secret.>"]\n')
    capture = tmp_path / "x.ncap"
    command = [
        sys.executable,
        "-m",
        "natsproxy",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        nats_server.url,
        "--record",
        str(capture),
        "--rules",
        str(rules),
        "--log-format",
        "json",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        first = next(line for line in process.stderr if "listening" in line)
        port = int(first.split('"127.0.0.1:')[1].split('"')[0])
        asyncio.run(_denied(f"nats://127.0.0.1:{port}"))
        process.send_signal(signal.SIGHUP)
        assert any("reloaded" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(20) == 0, rest
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert open_capture(capture).tail() is None


async def _denied(url: str) -> None:
    errors: list[str] = []
    noted = asyncio.Event()

    async def note(error: Exception) -> None:
        errors.append(str(error))
        noted.set()

    nc = await nats.connect(url, error_cb=note)
    await nc.publish("secret.plan", b"x")
    await asyncio.wait_for(noted.wait(), 10)
    assert errors == ['nats: permissions violation for publish to "secret.plan"']
    await nc.close()


@pytest.mark.parametrize(
    "args",
    [
        ["--upstream", "nats://127.0.0.1:1", "--listen", "tls://127.0.0.1:0"],
        ["--upstream", "nonsense"],
        ["--upstream", "nats://127.0.0.1:99999"],
        ["--upstream", "nats://127.0.0.1:1", "--listen", "nowhere"],
        ["--upstream", "nats://127.0.0.1:1", "--listen", "127.0.0.1:0", "--rules", "/nonexistent.toml"],
        ["--upstream", "nats://127.0.0.1:1", "--listen", "127.0.0.1:0", "--record", "/nonexistent/x.ncap"],
    ],
)
def test_bad_input_is_one_sentence(args: list[str]) -> None:
    """Exit code not 0, one sentence, no traceback."""
    done = CliRunner().invoke(main, ["run", *args])

    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    assert "Error:" in done.stderr


def test_a_port_in_use_is_one_sentence() -> None:
    """The address is named."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ["--listen", f"127.0.0.1:{port}", "--upstream", "nats://127.0.0.1:1"]
        done = CliRunner().invoke(main, ["run", *flags])

    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


async def _pong(address: object, more: bytes = b"") -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", int(str(address).rpartition(":")[2]))
    async with stream:
        await stream.send_all(b'CONNECT {"verbose":false}\r\n' + more + b"PING\r\n")
        received = b""
        with trio.fail_after(40):
            while b"PONG\r\n" not in received and (data := await stream.receive_some()):
                received += data
    return received


@pytest.mark.server
async def test_a_bug_ends_one_connection_and_no_other(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that finds bytes which we fail on must not be able to end the connections of all."""
    receive = Session.receive

    def failing(
        session: Session, direction: Direction, data: bytes, now: int, limit: WorkLimit = UNLIMITED_WORK
    ) -> list[Action]:
        if b"BOOM" in data:
            raise ZeroDivisionError("as a bug would")
        return receive(session, direction, data, now, limit)

    monkeypatch.setattr(Session, "receive", failing)
    proxy = Proxy(settings_for(nats_server))
    events: list[Event] = []
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        assert b"PONG\r\n" not in await _pong(address, b"PUB BOOM 0\r\n\r\n")
        assert b"PONG\r\n" in await _pong(address)
        await proxy.drain(5)
    (failed,) = [e for e in events if isinstance(e, Closed) and e.cause == close_reasons.INTERNAL]
    assert "ZeroDivisionError at test_proxy.py:" in failed.detail
