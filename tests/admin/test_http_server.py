"""The HTTP server: what clients of all manners get, and what they may cost."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from natsproxy.addresses import Address
from natsproxy.admin.guard import Guard
from natsproxy.admin.http_server import App, HttpServer
from natsproxy.admin.streamed import Streamed
from natsproxy.config.admin import Caller, token_hash
from natsproxy.config.endpoints import HttpListener
from natsproxy.errors import ConfigError
from tests.kit.authority import Authority

LOOPBACK = HttpListener(Address("127.0.0.1", 0))


class Said:
    """An application with a route for each manner of answer; `reports` are the server's complaints."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.streaming = self.left = 0
        self.app: App = Starlette(
            routes=[
                Route("/", self.greet),
                Route("/echo", self.echo, methods=["POST"]),
                Route("/bug", self.bug),
                Route("/stream", self.stream),
                Route("/flood", self.flood),
            ]
        )

    async def greet(self, _: Request) -> Response:
        return PlainTextResponse("hello")

    async def echo(self, request: Request) -> Response:
        return Response(await request.body())

    async def bug(self, _: Request) -> Response:
        raise ValueError("secret words")

    async def stream(self, _: Request) -> Response:
        async def lines() -> AsyncGenerator[str, None]:
            self.streaming += 1
            try:
                yield "first\n"
                await trio.sleep_forever()
            finally:
                self.left += 1

        return Streamed(lines(), "text/plain")

    async def flood(self, _: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            while True:
                yield bytes(65536)

        return Streamed(pieces(), "text/plain")


@asynccontextmanager
async def serving(said: Said, listener: HttpListener = LOOPBACK, **more: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(said.app, listener, said.reports.append, **more)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def talk(server: HttpServer, *pieces: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    assert isinstance(server.address, Address)
    stream = await trio.open_tcp_stream(server.address.host, server.address.port)
    async with stream:
        for piece in pieces:
            await stream.send_all(piece)
        return b"".join([part async for part in stream])


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


CLOSE = "Connection: close"


async def test_requests_on_one_connection_are_answered_in_turn() -> None:
    async with serving(Said()) as server:
        post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        said = await talk(server, get("/") + post + get("/", CLOSE))
        assert [part.partition(b"\r\n")[0] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"200 OK"] * 3
        assert said.index(b"hello") < said.index(b"abc") < said.rindex(b"hello")


async def test_bytes_may_come_one_by_one() -> None:
    async with serving(Said()) as server:
        said = await talk(server, *(bytes([byte]) for byte in get("/", CLOSE)))
        assert said.endswith(b"\r\n\r\nhello")


async def test_a_head_request_has_no_body() -> None:
    async with serving(Said()) as server:
        said = await talk(server, get("/", CLOSE, method="HEAD"))
        assert said.startswith(b"HTTP/1.1 200")
        assert said.endswith(b"\r\n\r\n")


async def test_a_bug_is_a_500_and_a_report_without_its_words() -> None:
    said = Said()
    async with serving(said) as server:
        assert (await talk(server, get("/bug"))).startswith(b"HTTP/1.1 500")
        assert (await talk(server, get("/", CLOSE))).endswith(b"hello")
    (report,) = said.reports
    assert "test_http_server.py" in report
    assert "secret words" not in report


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, b"431"),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n" + bytes(70_000), b"413"),
    ],
)
async def test_what_is_not_a_fair_request_is_refused(sent: bytes, status: bytes) -> None:
    said = Said()
    async with serving(said, most_body=65_536) as server:
        assert (await talk(server, sent)).startswith(b"HTTP/1.1 " + status)
    assert said.reports == []


async def test_a_client_that_leaves_ends_its_stream() -> None:
    said = Said()
    async with serving(said) as server:
        assert isinstance(server.address, Address)
        async with await trio.open_tcp_stream(server.address.host, server.address.port) as stream:
            await stream.send_all(get("/stream"))
            seen = b""
            while b"first" not in seen:
                seen += await stream.receive_some()
        with trio.fail_after(5):
            while not said.left:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("path", ["/flood", "/stream"])
async def test_a_client_that_reads_nothing_does_not_keep_the_server(path: str) -> None:
    said = Said()
    with trio.fail_after(10):
        async with serving(said) as server:
            assert isinstance(server.address, Address)
            stream = await trio.open_tcp_stream(server.address.host, server.address.port)
            await stream.send_all(get(path))
            await stream.receive_some(100)
        await stream.aclose()


async def test_one_client_too_many_is_told_so() -> None:
    async with serving(Said(), most_connections=1) as server:
        assert isinstance(server.address, Address)
        held = await trio.open_tcp_stream(server.address.host, server.address.port)
        await held.send_all(get("/stream"))
        await held.receive_some()
        assert (await talk(server)).startswith(b"HTTP/1.1 503")
        await held.aclose()
        with trio.fail_after(5):
            while not (await talk(server, get("/", CLOSE))).startswith(b"HTTP/1.1 200"):
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("secured", [False, True])
async def test_those_who_say_nothing_keep_nobody_out(secured: bool, authority: Authority) -> None:
    """Whoever has waited longest for a request goes: before it, or behind an answer."""
    certificate = authority.server() if secured else None
    async with serving(
        Said(), HttpListener(Address("127.0.0.1", 0), certificate), most_connections=2
    ) as server:
        assert isinstance(server.address, Address)
        place = server.address.host, server.address.port
        async with AsyncExitStack() as stack:

            async def connect() -> trio.abc.Stream:
                stream = await trio.open_tcp_stream(*place)
                stack.push_async_callback(trio.aclose_forcefully, stream)
                return stream

            async def newcomer() -> trio.abc.Stream:
                stream = await connect()
                if secured:
                    context = ssl.create_default_context(cafile=str(authority.file))
                    stream = trio.SSLStream(
                        stream, context, server_hostname="127.0.0.1", https_compatible=True
                    )
                await stream.send_all(get("/"))
                answer = b""
                while b"hello" not in answer:
                    answer += await stream.receive_some()
                return stream

            with trio.fail_after(20):
                quiet = [await connect() for _ in range(2)]
                first, _, _ = [await newcomer() for _ in range(3)]
                assert [await stream.receive_some() for stream in quiet] == [b"", b""]
                assert await first.receive_some() == b""


async def test_a_silent_client_is_let_go(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Said()) as server:
        assert isinstance(server.address, Address)
        stream = await trio.open_tcp_stream(server.address.host, server.address.port)
        await stream.send_all(b"GET / HT")
        assert await stream.receive_some() == b""
        await stream.aclose()


async def test_a_unix_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:  # left by a process that was killed
        dead.bind(str(path))
    async with serving(Said(), HttpListener(path)) as server:
        assert server.url == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        async with await trio.open_unix_socket(str(path)) as stream:
            await stream.send_all(get("/", CLOSE))
            assert b"".join([part async for part in stream]).endswith(b"hello")
        with pytest.raises(ConfigError, match="cannot listen on"):
            await HttpServer(Said().app, HttpListener(path), print).serve()
    assert not path.exists()


async def test_tls(tmp_path: Path, authority: Authority) -> None:
    certificate = authority.server()
    listener = HttpListener(Address("127.0.0.1", 0), certificate)
    async with serving(Said(), listener) as server:
        assert isinstance(server.address, Address)
        assert server.url.startswith("https://127.0.0.1:")

        def ask() -> bytes:
            assert isinstance(server.address, Address)
            context = ssl.create_default_context(cafile=str(authority.file))
            client = http.client.HTTPSConnection("127.0.0.1", server.address.port, context=context, timeout=5)
            with closing(client):
                client.request("GET", "/")
                return client.getresponse().read()

        assert await trio.to_thread.run_sync(ask) == b"hello"
        assert (await talk(server, get("/"))) == b""  # no TLS


# -- who may ask


TOKEN = "0123456789abcdef"


class Guarded(Said):
    """The application behind a token."""

    def __init__(self, token: str = TOKEN, hosts: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.app = self.guard = Guard(
            self.app, LOOPBACK, {token_hash(token): Caller()} if token else {}, hosts, open_paths=["/open"]
        )


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: localhost:1\r\nAuthorization: Bearer 0123456789abcdef", b"200"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: bearer 0123456789abcdef", b"200"),
        ("GET / HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: bearer 0123456789abcdef", b"200"),
        ("GET / HTTP/1.1\r\nHost: proxy.local\r\nAuthorization: Bearer 0123456789abcdef", b"200"),
        ("GET / HTTP/1.1\r\nHost: localhost", b"401"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdee", b"401"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff", b"401"),
        ("GET /open HTTP/1.1\r\nHost: localhost", b"404"),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer 0123456789abcdef", b"421"),
        ("GET / HTTP/1.1\r\nHost: [::1].evil\r\nAuthorization: Bearer 0123456789abcdef", b"421"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:1@evil\r\nAuthorization: Bearer 0123456789abcdef", b"421"),
        (
            "GET / HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\n"
            "Authorization: Bearer 0123456789abcdef",
            b"200",
        ),
        (
            "GET / HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://evil.example\r\n"
            "Authorization: Bearer 0123456789abcdef",
            b"403",
        ),
        (
            "GET / HTTP/1.1\r\nHost: localhost:1\r\nOrigin: null\r\nAuthorization: Bearer 0123456789abcdef",
            b"403",
        ),
        (
            "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n"
            "Authorization: Bearer 0123456789abcdef",
            b"403",
        ),
        ("GET /open HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site", b"404"),  # a link to the page
    ],
)
async def test_strangers_are_refused(head: str, status: bytes) -> None:
    async with serving(Guarded(hosts=("proxy.local",))) as server:
        said = await talk(server, f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        assert said.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("path", ["/", "/stream"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_sites_are_refused_without_a_token_too(path: str, site: str) -> None:
    """As an image or a script they ask without Origin; what they get opens nothing."""
    said = Guarded(token="")
    async with serving(said) as server:
        answer = await talk(server, get(path, f"Sec-Fetch-Site: {site}", CLOSE))
        assert answer.startswith(b"HTTP/1.1 403")
        assert said.streaming == 0


UNSENT = "Content-Length: 100000"
BEARER = f"Authorization: Bearer {TOKEN}"


@pytest.mark.parametrize(("token", "path"), [(TOKEN, "/echo"), (TOKEN, "/open"), ("", "/")])
async def test_bodies_that_never_come_keep_nobody_out(token: str, path: str) -> None:
    """A place is for a request that is authorised, until it is answered."""
    said = Guarded(token)
    with trio.fail_after(10):
        async with (
            serving(said, most_connections=2, holds=said.guard.holds) as server,
            AsyncExitStack() as stack,
        ):
            assert isinstance(server.address, Address)
            place = server.address.host, server.address.port
            for _ in range(4):
                stream = await stack.enter_async_context(await trio.open_tcp_stream(*place))
                await stream.send_all(get(path, UNSENT, method="POST"))
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 4")
            assert (await talk(server, get("/", BEARER, CLOSE))).endswith(b"hello")


async def test_a_request_with_the_token_keeps_its_place() -> None:
    said = Guarded()
    async with serving(said, most_connections=1, holds=said.guard.holds) as server:
        assert isinstance(server.address, Address)
        async with await trio.open_tcp_stream(server.address.host, server.address.port) as held:
            await held.send_all(get("/stream", BEARER))
            await held.receive_some()
            assert (await talk(server, get("/", BEARER, CLOSE))).startswith(b"HTTP/1.1 503")


async def test_a_stranger_gets_an_answer_and_no_more_time() -> None:
    """Its connection ends at once, and the answer arrives in any case, also while its body is on the way."""
    async with serving(Guarded()) as server:
        with trio.fail_after(10):
            said = await talk(server, get("/echo", UNSENT, method="POST"))
        assert said.startswith(b"HTTP/1.1 401")
        address = server.address
        assert isinstance(address, Address)

        def post() -> int:
            with closing(http.client.HTTPConnection(address.host, address.port, timeout=10)) as client:
                client.request("POST", "/echo", bytes(8 << 20))
                return client.getresponse().status

        assert [await trio.to_thread.run_sync(post) for _ in range(20)] == [401] * 20
