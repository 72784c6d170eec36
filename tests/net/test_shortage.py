"""A proxy without descriptors for more connections: its own trouble, said once, and no server is blamed."""

from __future__ import annotations

import errno
import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import trio
import trio.testing

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.events import Event, Notice
from natsproxy.net.arrivals import Arrivals
from natsproxy.net.clock import now_ns
from natsproxy.net.endpoints import Endpoint
from natsproxy.net.listener import accept
from natsproxy.net.shortage import Shortage
from tests.kit.servers import NatsServer

CLIENTS = 60


def served(port: int) -> bool:
    """Return whether a client gets through."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        try:
            sock.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            received = b""
            while data := sock.recv(4096):
                received += data
                if received.endswith(b"PONG\r\n"):
                    return True
        except ConnectionError:
            return False
    return False


def ended(process: subprocess.Popen[str]) -> list[str]:
    """End a proxy; return the last lines of its log."""
    process.kill()
    return process.communicate()[1].splitlines()[-5:]


@pytest.mark.server
def test_it_is_one_error_and_no_server_is_down(nats_server: NatsServer) -> None:
    """With an odd and an even number of descriptors: some clients are accepted and get no server."""
    command = [sys.executable, "-m", "natsproxy", "run", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--upstream", nats_server.url, "--log-format", "json", "--log-rate", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[dict[str, Any]] = []

    def until(key: str, value: str) -> None:
        assert process.stderr is not None
        while not any(line.get(key) == value for line in lines):
            lines.append(json.loads(process.stderr.readline()))

    def limit(descriptors: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (descriptors, hard))

    try:
        until("event", "listening")
        port = int(lines[0]["listen"][0].rpartition(":")[2])
        limit(40)
        with ExitStack() as clients:
            for _ in range(CLIENTS):
                clients.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            until("level", "error")
            limit(41)
            until("cause", "limit")
        last = time.monotonic() + 30
        while not served(port) and time.monotonic() < last:
            pass
        assert time.monotonic() < last, ended(process)
        process.send_signal(signal.SIGTERM)
        lines += [json.loads(line) for line in process.communicate(timeout=30)[1].splitlines()]
    finally:
        process.kill()
        process.communicate()
    (error,) = [line for line in lines if line["level"] == "error"]
    assert error["event"].startswith("natsproxy can open no more connections: Too many open files (raise")
    assert not [line for line in lines if "cannot be used" in line["event"]]
    ends = [line for line in lines if line["event"] == "closed"]
    assert "upstream-down" not in {end["cause"] for end in ends}
    turned_away = [end["detail"] for end in ends if end["cause"] == "limit"]
    assert turned_away
    assert set(turned_away) == {"natsproxy can open no more connections: Too many open files"}


def test_without_descriptors_nobody_asks_where_a_server_is() -> None:
    """A listener on all addresses may be the server itself; who cannot find out cannot connect either."""
    server = Server(Address("127.0.0.5", 4222))
    endpoint = Endpoint(server, socket.AF_INET, ("127.0.0.5", 4222))
    listening = [Address("0.0.0.0", 4222)]
    assert endpoint.leads_to(listening)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not endpoint.leads_to(listening)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_its_end_is_said_with_a_count(autojump_clock: trio.testing.MockClock) -> None:
    """It is over when no connection has failed for a while."""
    events: list[Event] = []
    errors = [OSError(errno.EMFILE, "Too many open files")] * 3

    class Listening(socket.socket):
        def accept(self) -> Any:
            if errors:
                raise errors.pop()
            return super().accept()

    def taken(client: socket.socket) -> tuple[int, Callable[[], None]]:
        return 1, client.close

    shortage = Shortage(events.append, now_ns)
    with Listening() as listening, socket.socket() as client, trio.move_on_after(60):
        listening.setblocking(False)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        arrivals = Arrivals(events.append, lambda _: None, now_ns)
        await accept(listening, arrivals, taken, shortage)
    told = [(event.level, event.text, event.data) for event in events if isinstance(event, Notice)]
    assert [level for level, _, _ in told] == ["error", "warning"]
    assert told[1][1:] == ("natsproxy can open connections again", {"seconds": 0.2, "failures": 3})
