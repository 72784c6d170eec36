"""The health of a proxy whose servers are frozen: they accept connections and say nothing.

An idle client is connected all the time, and notices as little of the probes as its server does.
"""

from __future__ import annotations

import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from natsproxy.addresses import Address
from natsproxy.cli import main, supervision
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Notice, Opened
from natsproxy.net.proxy import Proxy
from natsproxy.net.systemd import Notifier
from natsproxy.testing import NatsServer
from natsproxy.units import MILLISECOND
from tests.kit.process import ProxyProcess

LIMIT = 30.0  # seconds
SILENT = "accepts connections but sent no INFO"
pytestmark = pytest.mark.server


@contextmanager
def servers(count: int) -> Iterator[list[NatsServer]]:
    """Give servers; those that are frozen at the end go on."""
    with ExitStack() as stack:
        made = [stack.enter_context(NatsServer()) for _ in range(count)]
        for server in made:
            stack.callback(server.signal, signal.SIGCONT)
        yield made


def connected(port: int) -> socket.socket:
    """Return a client past its first PONG."""
    client = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    client.sendall(b"CONNECT {}\r\n")
    ping(client)
    return client


def ping(client: socket.socket) -> None:
    """Return when a PING of a client is answered; the server may send its own."""
    client.sendall(b"PING\r\n")
    got = b""
    while b"PONG\r\n" not in got:
        data = client.recv(4096)
        assert data, got
        got += data


async def until(read: Callable[[], bool]) -> None:
    """Wait until something is true."""
    with trio.fail_after(LIMIT):
        while not read():  # noqa: ASYNC110 - it is polled
            await trio.sleep(0.005)


async def test_health_is_true_beside_an_idle_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """One frozen server of two leaves the proxy ready, the second does not; one that goes on is enough."""
    monkeypatch.setattr(supervision, "_WHEN_READY", 0.05)
    monkeypatch.setattr(supervision, "_WHEN_NOT", 0.05)
    events: list[Event] = []
    with servers(2) as (first, second):
        upstream = tuple(Server(Address("127.0.0.1", one.port)) for one in (first, second))
        settings = ProxySettings(
            listen=(Listener(),),
            upstream=upstream,
            connect_timeout=500 * MILLISECOND,
            upstream_randomize=False,
        )
        proxy = Proxy(settings)
        proxy.subscribe(events.append)

        def said(text: str) -> list[str]:
            return [event.text for event in events if isinstance(event, Notice) and text in event.text]

        def up() -> list[bool]:
            known = {server.name: server.up for server in proxy.connections.upstreams.servers}
            return [known[f"127.0.0.1:{one.port}"] for one in (first, second)]

        def dialled() -> list[str]:
            return [event.upstream for event in events if isinstance(event, Opened)]

        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            nursery.start_soon(supervision.Supervision(proxy, Notifier({}), None, None).run, None)
            await until(lambda: proxy.unready is None)
            with await trio.to_thread.run_sync(connected, proxy.listen[0].port) as client:
                first.signal(signal.SIGSTOP)
                await until(lambda: bool(said(f"127.0.0.1:{first.port} accepts")))
                assert proxy.unready is None
                assert up() == [False, True]
                before = len(dialled())
                (await trio.to_thread.run_sync(connected, proxy.listen[0].port)).close()
                assert dialled()[before:] == [f"127.0.0.1:{second.port}"]
                second.signal(signal.SIGSTOP)
                await until(lambda: proxy.unready is not None)
                assert SILENT in (proxy.unready or "")
                assert len(said(f"the upstream cannot be used: 127.0.0.1:{second.port}")) == 1
                second.signal(signal.SIGCONT)
                await until(lambda: proxy.unready is None)
                assert len(said("the upstream is back")) == 1
                assert up() == [False, True]  # the client that goes on is not told from another one
                first.signal(signal.SIGCONT)
                await until(lambda: up() == [True, True])
                assert len(said(f"the server 127.0.0.1:{first.port} is back")) == 1
                await trio.to_thread.run_sync(ping, client)
                assert 1 not in {event.conn for event in events if isinstance(event, Closed)}
            nursery.cancel_scope.cancel()


def fetched(url: str) -> tuple[int, str]:
    """Return status and text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.long
def test_everybody_who_asks_hears_the_same(tmp_path: Path) -> None:
    """/healthz, /metrics, `natsproxy healthcheck` and the log, of a process with its own pace."""
    ready = tmp_path / "ready"
    flags = ("--monitor", "127.0.0.1:0", "--ready-file", str(ready), "--connect-timeout", "1s")
    with servers(1) as (server,), ProxyProcess(server.url, *flags) as proxy:
        url = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]

        def answers() -> tuple[int, int, bool]:
            code = CliRunner().invoke(main, ["healthcheck", "--ready-file", str(ready)]).exit_code
            metric = "\nnatsproxy_upstream_ready 1.0\n" in fetched(f"{url}/metrics")[1]
            return code, fetched(f"{url}/healthz")[0], metric

        def come(expected: tuple[int, int, bool]) -> None:
            deadline = time.monotonic() + LIMIT
            while answers() != expected:
                assert time.monotonic() < deadline, answers()
                time.sleep(0.05)

        come((0, 200, True))
        with connected(proxy.port) as client:
            server.signal(signal.SIGSTOP)
            come((1, 503, False))
            server.signal(signal.SIGCONT)
            come((0, 200, True))
            ping(client)
        outage = [line["event"] for line in proxy.lines() if line["event"].startswith("the upstream ")]
        assert [SILENT in outage[0], *outage[1:]] == [True, "the upstream is back"]
        assert proxy.drain() == 0
        assert "[ERR]" not in server.log()
