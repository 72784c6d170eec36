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
from ipaddress import ip_network
from pathlib import Path

import bcrypt
import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import WebSocketURI

from natsproxy.addresses import Address
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.net.leg import Leg
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import Credentials
from natsproxy.protocol.proxy_header import write
from natsproxy.session.values import Identity
from natsproxy.units import SECOND
from tests.kit.authority import Authority
from tests.net.tls.legs import settings

LARGE = 300_000  # bytes: more than the sockets of this test take
SMALL = 8_192  # bytes of a socket's buffers
INFO = b'INFO {"server_id":"S","version":"2.15.1","proto":1,"headers":true,"max_payload":1048576%s} \r\n'
HEADER = write(2, Address("192.0.2.7", 7777), Address("192.0.2.1", 4222))
PASSWORD = bcrypt.hashpw(b"pw", bcrypt.gensalt(4))
ANY_HOST = WebSocketURI(False, "localhost", 80, "/", "")
AnyStream = trio.abc.Stream


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
        if task.name.endswith("Connections.run"):
            return True
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    return False


class WebSocket(trio.abc.Stream):
    """The stream of a peer that speaks WebSocket; each part of the upgrade goes on when all tasks wait."""

    def __init__(self, plain: trio.SocketStream, protocol: ClientProtocol | ServerProtocol) -> None:
        self._plain = plain
        self._protocol = protocol

    async def upgrade(self) -> WebSocket:
        """Ask for the upgrade, or answer."""
        if isinstance(self._protocol, ClientProtocol):
            self._protocol.send_request(self._protocol.connect())
            await self._send_in_halves()
        while not (events := self._protocol.events_received()):
            self._protocol.receive_data(await self._plain.receive_some())
        if isinstance(self._protocol, ServerProtocol):
            (request,) = events
            assert isinstance(request, Request)
            self._protocol.send_response(self._protocol.accept(request))
            await self._send_in_halves()
        return self

    async def _send_in_halves(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        for half in (data[:40], data[40:]):
            await wait_all_tasks_blocked()
            await self._plain.send_all(half)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send a frame."""
        if self._protocol.state is not OPEN:
            raise trio.BrokenResourceError("the peer has closed")
        self._protocol.send_binary(bytes(data))
        for part in self._protocol.data_to_send():
            await self._plain.send_all(part)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the stream takes bytes."""
        await self._plain.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the data of frames."""
        while data := await self._plain.receive_some():
            self._protocol.receive_data(data)
            events = self._protocol.events_received()
            if found := b"".join(bytes(one.data) for one in events if isinstance(one, Frame)):
                return found
        return b""

    async def aclose(self) -> None:
        """Close in good order."""
        with suppress(trio.BrokenResourceError):
            if self._protocol.state is OPEN:  # the peer may have closed first
                self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            await self._plain.send_all(b"".join(self._protocol.data_to_send()))
        await self._plain.aclose()


class Conversation:
    """Both ends of a connection: each part goes on when all tasks wait for it.

    client: the kind of its leg; "PROXY": behind a load balancer, "user": it logs in at the proxy, "nonsense":
    it is expelled.  server: "late" comes when the client waits for it.
    """

    def __init__(self, authority: Authority, client: str, server: str) -> None:
        self._authority = authority
        self._client, self._server = client, server
        self.ready = trio.Event()  # of the server
        if server != "late":
            self.ready.set()

    async def serve(self, plain: trio.SocketStream) -> None:
        """Play the server."""
        stream: AnyStream = plain
        if self._server == "before INFO":
            stream = self._secured(plain)
        with suppress(trio.BrokenResourceError):
            if self._server == "ws":
                stream = await WebSocket(plain, ServerProtocol()).upgrade()
            await wait_all_tasks_blocked()
            await stream.send_all(INFO % (b',"tls_required":true' if "INFO" in self._server else b""))
            await wait_all_tasks_blocked()
            if self._server == "after INFO":
                stream = self._secured(plain)
            await self._read(stream, b"PING\r\n")
            await stream.send_all(b"PONG\r\n")
            await wait_all_tasks_blocked()  # the client's message stalls meanwhile
            if self._client == "nonsense":  # the proxy asks for the place of its -ERR
                await self._read(stream, b"PING\r\n")
                await stream.send_all(b"PONG\r\n")
            if await self._read(stream, b"END\r\n"):
                await stream.send_all(b"MSG a 1 %d\r\n%s\r\n" % (LARGE, bytes(LARGE)))
            else:
                await wait_all_tasks_blocked()  # the proxy has ended its stream, and waits for ours
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
            self.ready.set()
            if self._client == "PROXY":
                for half in (HEADER[:20], HEADER[20:]):
                    await plain.send_all(half)
                    await wait_all_tasks_blocked()
            if self._client == "ws":
                stream = await WebSocket(plain, ClientProtocol(ANY_HOST)).upgrade()
            if self._client != "before INFO":
                await self._read(stream, b"\n")
            if "INFO" in self._client:
                context = self._authority.client_context()
                stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True)
                await stream.do_handshake()
            if self._client == "before INFO":
                await self._read(stream, b"\n")
            await self._talk(stream)

    async def _talk(self, stream: AnyStream) -> None:
        await wait_all_tasks_blocked()
        await stream.send_all(b'CONNECT {"verbose":false,"headers":true,"user":"ann","pass":"pw"}\r\n')
        await wait_all_tasks_blocked()
        await stream.send_all(b"SUB a 1\r\nPING\r\n")
        await self._read(stream, b"PONG\r\n")
        if self._client == "nonsense":
            await stream.send_all(b"NONSENSE\r\n")
            await self._read(stream, b"no end\r\n")
            await wait_all_tasks_blocked()  # the proxy has ended its stream, and waits for ours
            return
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

    async def _read(self, stream: AnyStream, mark: bytes) -> bool:
        """Read up to a mark at the end of what has come, byte by byte where a handshake may follow.

        Return False where the stream ends before.
        """
        seen = b""
        while not seen.endswith(mark):
            data = await stream.receive_some(1 if mark == b"\n" else 65_536)
            if not data:
                return False
            seen = seen[-len(mark) :] + data
        return True


@asynccontextmanager
async def server_of(conversation: Conversation) -> AsyncIterator[int]:
    """Listen for the proxy; give the port."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    await sock.bind(("127.0.0.1", 0))

    async def listen() -> None:
        await conversation.ready.wait()
        sock.listen()
        await trio.serve_listeners(conversation.serve, [trio.SocketListener(sock)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        yield sock.getsockname()[1]
        nursery.cancel_scope.cancel()
    sock.close()


def settings_for(authority: Authority, client: str, server: str, port: int) -> ProxySettings:
    """Return the settings of a proxy for both ends."""
    secured = [kind if "INFO" in kind else "plain" for kind in (client, server)]
    made = settings(authority, secured[0], secured[1], port)
    networks = (ip_network("127.0.0.0/8"),) if client == "PROXY" else ()
    scheme = "ws" if client == "ws" else made.listen[0].scheme
    return replace(
        made,
        listen=(replace(made.listen[0], scheme=scheme, proxy_protocol=networks),),
        upstream=(replace(made.upstream[0], scheme="ws"),) if server == "ws" else made.upstream,
        upstream_hold=20 * SECOND,
        upstream_proxy_protocol=2 if client == "PROXY" else None,
        identity=Identity(Credentials("own", "own"), "users") if client == "user" else None,
        client_users={"ann": PASSWORD} if client == "user" else {},
    )


async def cancelled_at(
    number: int, authority: Authority, client: str, server: str, record: Path | None
) -> bool:
    """Run the conversation, cancelled at a step; return whether it got that far."""
    conversation = Conversation(authority, client, server)
    events: list[Event] = []
    async with server_of(conversation) as port:
        made = settings_for(authority, client, server, port)
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
        ("plain", "plain", "native"),
        pytest.param("after INFO", "plain", "native", marks=LONG),
        pytest.param("before INFO", "after INFO", "native", marks=LONG),
        pytest.param("plain", "before INFO", "native", marks=LONG),
        pytest.param("ws", "plain", "native", marks=LONG),
        pytest.param("plain", "ws", "native", marks=LONG),
        ("PROXY", "plain", "native"),
        ("user", "plain", "native"),
        pytest.param("plain", "late", "native", marks=LONG),
        pytest.param("nonsense", "plain", "native", marks=LONG),
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
    assert number > 5  # it has come to the messages
