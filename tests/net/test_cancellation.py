"""A cancellation at every await point of the traffic path: nothing hangs, leaks or goes unreported.

A conversation runs again and again, and stalls at each of its turns; the n-th run is cancelled at the n-th
time that a task of the connection gives way.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from natsproxy.config.settings import RecordSettings
from natsproxy.events import Closed, Event
from natsproxy.net.leg import Leg
from natsproxy.net.proxy import Proxy
from tests.kit.authority import Authority
from tests.net.tls.legs import settings

LARGE = 300_000  # bytes: more than the sockets of this test take
SMALL = 8_192  # bytes of a socket's buffers
INFO = b'INFO {"server_id":"S","version":"2.15.1","proto":1,"headers":true,"max_payload":1048576%s} \r\n'
AnyStream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give a CA that both sides trust."""
    return Authority(tmp_path_factory.mktemp("ca"))


class Steps(trio.abc.Instrument):
    """Counts the times that tasks of connections give way, and calls `then` at the n-th."""

    def __init__(self, number: int, then: Callable[[], None]) -> None:
        self.seen = 0
        self._number = number
        self._then = then

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Look whose step it was."""
        if _serves(task):
            self.seen += 1
            if self.seen == self._number:
                self._then()


def _serves(task: trio.lowlevel.Task | None) -> bool:
    while task is not None:
        if task.name.endswith("Connections.serve"):
            return True
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    return False


class Conversation:
    """Both ends of a connection: each part goes on when all tasks wait for it."""

    def __init__(self, authority: Authority, client: str, server: str) -> None:
        self._authority = authority
        self._client, self._server = client, server

    async def serve(self, plain: trio.SocketStream) -> None:
        """Play the server."""
        stream: AnyStream = plain
        if self._server == "before INFO":
            stream = self._secured(plain)
        with suppress(trio.BrokenResourceError):
            await wait_all_tasks_blocked()
            await stream.send_all(INFO % (b"" if self._server == "plain" else b',"tls_required":true'))
            await wait_all_tasks_blocked()
            if self._server == "after INFO":
                stream = self._secured(plain)
            await self._read(stream, b"PING\r\n")
            await stream.send_all(b"PONG\r\n")
            await wait_all_tasks_blocked()  # the client's message stalls meanwhile
            await self._read(stream, b"END\r\n")
            await stream.send_all(b"MSG a 1 %d\r\n%s\r\n" % (LARGE, bytes(LARGE)))
            await stream.aclose()

    async def ask(self, port: int) -> None:
        """Play the client."""
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        await sock.connect(("127.0.0.1", port))
        plain = trio.SocketStream(sock)
        async with plain:
            stream: AnyStream = plain
            await wait_all_tasks_blocked()
            if self._client != "before INFO":
                await self._read(plain, b"\n")
            if self._client != "plain":
                context = self._authority.client_context()
                stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True)
                await stream.do_handshake()
            if self._client == "before INFO":
                await self._read(stream, b"\n")
            await wait_all_tasks_blocked()
            await stream.send_all(b'CONNECT {"verbose":false,"headers":true}\r\nSUB a 1\r\nPING\r\n')
            await self._read(stream, b"PONG\r\n")
            await stream.send_all(b"PUB a %d\r\n%s\r\n" % (LARGE, bytes(LARGE - 3) + b"END"))
            await wait_all_tasks_blocked()  # the server's message stalls meanwhile
            with suppress(trio.BrokenResourceError):
                await self._read(stream, b"\x00\r\n")
                await wait_all_tasks_blocked()
                await stream.aclose()

    def _secured(self, plain: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._authority.server())
        return trio.SSLStream(plain, context, server_side=True, https_compatible=True)

    async def _read(self, stream: AnyStream, mark: bytes) -> None:
        """Read up to a mark at the end of what has come, byte by byte where a handshake may follow."""
        seen = b""
        while not seen.endswith(mark):
            data = await stream.receive_some(1 if mark == b"\n" else 65_536)
            if not data:
                return
            seen = seen[-len(mark) :] + data


@asynccontextmanager
async def server_of(conversation: Conversation) -> AsyncIterator[int]:
    """Listen for the proxy; give the port."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        listeners[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        await nursery.start(partial(trio.serve_listeners, conversation.serve, listeners))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def cancelled_at(
    number: int, authority: Authority, client: str, server: str, record: Path | None
) -> bool:
    """Run the conversation, cancelled at a step; return whether it got that far."""
    conversation = Conversation(authority, client, server)
    events: list[Event] = []
    async with server_of(conversation) as port:
        made = settings(authority, client, server, port)
        proxy = Proxy(replace(made, record=None if record is None else RecordSettings(record)))
        proxy.subscribe(events.append)
        async with trio.open_nursery() as nursery:
            steps = Steps(number, nursery.cancel_scope.cancel)
            (address,) = await nursery.start(proxy.serve)
            trio.lowlevel.add_instrument(steps)
            try:
                await conversation.ask(address.port)
                while proxy.accepted > len([event for event in events if isinstance(event, Closed)]):
                    await wait_all_tasks_blocked()
                    await trio.sleep(0.001)  # the kernel's turn: a socket's end is on its way
            finally:
                trio.lowlevel.remove_instrument(steps)
            nursery.cancel_scope.cancel()
    assert len([event for event in events if isinstance(event, Closed)]) == proxy.accepted
    assert [event for event in events if isinstance(event, Closed) and event.cause == "internal"] == []
    assert not proxy.relays
    return steps.seen >= number


def descriptors() -> int:
    """Return the number of open files."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("client", "server", "plane"),
    [
        pytest.param("plain", "plain", "python", marks=LONG),
        pytest.param("plain", "plain", "native", marks=LONG),
        pytest.param("after INFO", "plain", "native", marks=LONG),
        pytest.param("before INFO", "after INFO", "native"),
        pytest.param("plain", "before INFO", "native", marks=LONG),
    ],
)
async def test_every_await_point(
    authority: Authority,
    client: str,
    server: str,
    plane: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No hang, no task, no socket left; each accepted connection has its end in the log."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    opened = Leg.__init__

    def with_small_buffers(leg: Leg, sock: socket.socket, *, keepalive: bool = True) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        opened(leg, sock, keepalive=keepalive)

    monkeypatch.setattr(Leg, "__init__", with_small_buffers)
    number, before = 1, 0
    with trio.fail_after(240):
        while await cancelled_at(number, authority, client, server, tmp_path / f"{number}.ncap"):
            (tmp_path / f"{number}.ncap").unlink()
            before = before or descriptors()  # the first run opens what the process keeps
            assert descriptors() <= before, number  # fewer: those of an earlier test are gone by now
            number += 1
    assert number > 10
