"""A proxy before a real server with the admin API beside it, and a client of the API, in one trio run."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import trio

from natsproxy.addresses import Address
from natsproxy.admin.api.app import OPEN_PATHS, admin_app
from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import HttpServer
from natsproxy.admin.managed import ManagedProxy
from natsproxy.admin.page.app import PageApp
from natsproxy.admin.page.sessions import Sessions
from natsproxy.config.admin import Caller, token_hash
from natsproxy.config.endpoints import HttpListener, Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.testing import NatsServer

TOKEN = "a-token-of-some-length"


class Answer(NamedTuple):
    """An answer of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Api:
    """A client of the API.  managed: the proxy behind it.  reports: the complaints of the HTTP server."""

    def __init__(self, server: HttpServer, managed: ManagedProxy, reports: list[str]) -> None:
        assert isinstance(server.address, Address)
        self.address = server.address
        self.managed = managed
        self.proxy = managed.proxy
        self.reports = reports

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = TOKEN,
    ) -> Answer:
        """Send a request and return the whole answer.  path: below /v1/proxies/main, or from / on."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        stream = await self.open(method, path, raw, headers, token)
        async with stream:
            received = b""
            with suppress(trio.BrokenResourceError):  # it does not read what is too large
                async for piece in stream:
                    received += piece
        return answer_of(received)

    async def open(
        self,
        method: str,
        path: str,
        raw: bytes = b"",
        headers: Mapping[str, str] | None = None,
        token: str | None = TOKEN,
    ) -> trio.SocketStream:
        """Send a request and return the stream."""
        path = path if path.startswith("/") else f"/v1/proxies/main/{path}".rstrip("/")
        sent = {"Host": str(self.address), "Connection": "close", "Content-Length": str(len(raw))}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in (sent | dict(headers or {})).items())
        stream = await trio.open_tcp_stream("127.0.0.1", self.address.port)
        with suppress(trio.BrokenResourceError):  # an answer may come before the request has gone
            await stream.send_all(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + raw)
        return stream


def answer_of(received: bytes) -> Answer:
    """Return the answer in the bytes of a connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        pieces, rest = [], body
        while rest and (size := int(rest[: rest.index(b"\r\n")], 16)):
            start = rest.index(b"\r\n") + 2
            pieces.append(rest[start : start + size])
            rest = rest[start + size + 2 :]
        body = b"".join(pieces)
    return Answer(int(first.split()[1]), headers, body)


@asynccontextmanager
async def running(
    upstream: NatsServer,
    folder: Path | None = None,
    callers: Mapping[bytes, Caller] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[Api]:
    """Run a proxy with its API.  folder: for captures of the API.  callers: others than `TOKEN`'s."""
    proxy = Proxy(
        ProxySettings(
            listen=(Listener(),), upstream=(Server(Address("127.0.0.1", upstream.port)),), seed=7, **settings
        )
    )
    managed, reports = ManagedProxy("main", proxy), list[str]()
    listener = HttpListener(Address("127.0.0.1", 0))
    sessions = Sessions()
    page = PageApp(admin_app({"main": managed}, {"seed": 7}, folder, sessions), sessions)
    app = Guard(
        page, listener, {token_hash(TOKEN): Caller(), **callers}, (), page.paths.union(OPEN_PATHS), sessions
    )
    server = HttpServer(app, listener, reports.append)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            await nursery.start(server.serve)
            yield Api(server, managed, reports)
            nursery.cancel_scope.cancel()
    assert not reports


class Client:
    """A NATS client of few words."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.ended = False
        self._bytes = b""

    async def send(self, data: bytes) -> None:
        """Send frames."""
        await self.stream.send_all(data)

    async def line(self) -> bytes:
        """Return the next line, b"" at the end of the connection; the server's PINGs are answered."""
        while True:
            while b"\r\n" not in self._bytes:
                data = await self.stream.receive_some()
                if not data:
                    self.ended = True
                    return b""
                self._bytes += data
            line, _, self._bytes = self._bytes.partition(b"\r\n")
            if line != b"PING":  # a real server's first one comes two seconds after the CONNECT
                return line
            await self.send(b"PONG\r\n")

    async def ping(self) -> list[bytes]:
        """Send a PING; return the lines before its PONG."""
        await self.send(b"PING\r\n")
        lines: list[bytes] = []
        while (line := await self.line()) != b"PONG":
            assert not self.ended, f"the connection was closed after {lines}"
            lines.append(line)
        return lines


@asynccontextmanager
async def client_of(api: Api, name: str = "app") -> AsyncIterator[Client]:
    """Connect a client through the proxy."""
    stream = await trio.open_tcp_stream("127.0.0.1", api.proxy.listen[0].port)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with stream:
        client = Client(stream)
        assert (await client.line()).startswith(b"INFO")
        connect = {"verbose": False, "name": name, "lang": "go", "version": "1.2", "headers": True}
        connect["pass"] = "hush-hush"
        await client.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
        await client.ping()
        yield client
