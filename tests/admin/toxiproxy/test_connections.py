"""Toxics on connections: what both peers get, byte by byte."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from random import Random
from types import TracebackType
from typing import Any

import pytest

from natsproxy.admin.toxiproxy.stages import STAGES
from natsproxy.admin.toxiproxy.toxic_leg import Flow, ToxicTraffic
from natsproxy.net.leg import Leg
from tests.admin.toxiproxy.kit import Toxi

HOUR = 3_600_000  # ms
MSG = b"MSG a 1 5\r\nhello\r\n"
PUB = b"PUB a 2\r\nhi\r\n"


class Line:
    """A client and its server, both of the test, on a new connection through the proxy `nats`."""

    def __init__(self, toxi: Toxi, listener: socket.socket) -> None:
        host, _, port = toxi.call("GET", "/proxies/nats").json["listen"].rpartition(":")
        self.client = socket.create_connection((host, int(port)), 20)
        self.server, _ = listener.accept()
        self.server.settimeout(20)
        self.server.sendall(b'INFO {"max_payload":1000,"connect_urls":["192.0.2.1:4222"]}\r\n')

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.server.close()

    def greet(self) -> Line:
        """Bring both peers to the point where messages flow."""
        line = until(self.client, lambda got: got.endswith(b"\r\n"))
        assert b"192.0.2.1" not in line, "no way around the proxy"
        self.client.sendall(b"CONNECT {}\r\nPING\r\n")
        until(self.server, lambda got: got.endswith(b"PING\r\n"))
        self.server.sendall(b"PONG\r\n")
        until(self.client, lambda got: got == b"PONG\r\n")
        return self


def until(sock: socket.socket, enough: Callable[[bytes], bool]) -> bytes:
    got = b""
    while not enough(got):
        data = sock.recv(4096)
        assert data, f"the stream ended after {got!r}"
        got += data
    return got


def gets(sock: socket.socket, wanted: bytes) -> None:
    assert until(sock, lambda got: len(got) >= len(wanted)) == wanted


def rest(sock: socket.socket) -> bytes:
    """Return all that comes until the end of the stream."""
    return b"".join(iter(lambda: sock.recv(4096), b""))


def quiet(*socks: socket.socket) -> bool:
    return not select.select(socks, [], [], 0)[0]


@pytest.fixture(scope="module")
def shared() -> Iterator[Toxi]:
    with Toxi() as server:
        yield server


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(20)
        yield sock


@pytest.fixture
def toxi(shared: Toxi, listener: socket.socket) -> Iterator[Toxi]:
    """Give the server with the proxy `nats` and no toxic."""
    shared.make(f"127.0.0.1:{listener.getsockname()[1]}")
    shared.closed.clear()
    yield shared
    shared.call("DELETE", "/proxies/nats")


@pytest.fixture
def line(toxi: Toxi, listener: socket.socket) -> Iterator[Line]:
    with Line(toxi, listener) as opened:
        yield opened.greet()


@pytest.mark.parametrize(
    ("kind", "attributes"), [("latency", {"latency": HOUR}), ("bandwidth", {"rate": 0}), ("bandwidth", {})]
)
def test_what_is_held_goes_on_when_the_toxic_is_removed(
    toxi: Toxi, line: Line, kind: str, attributes: dict[str, Any]
) -> None:
    """On the same connection, in both directions."""
    up, down = toxi.toxic(kind, "upstream", **attributes), toxi.toxic(kind, **attributes)
    line.client.sendall(PUB)
    line.server.sendall(MSG)
    toxi.call("GET", "/proxies")
    assert quiet(line.client, line.server)
    toxi.call("DELETE", up)
    gets(line.server, PUB)
    assert quiet(line.client)
    toxi.call("DELETE", down)
    gets(line.client, MSG)
    line.server.sendall(MSG)
    gets(line.client, MSG)
    assert not toxi.closed


def test_back_pressure_of_a_line_that_is_cut(toxi: Toxi, line: Line) -> None:
    """The sender is stopped, not the memory of the proxy filled."""
    cut = toxi.toxic("bandwidth", "upstream", rate=0)
    line.client.setblocking(False)
    sent, frame = 0, b"PUB a 900\r\n" + bytes(900) + b"\r\n"
    rest_of = frame * 100
    while select.select([], [line.client], [], 0.3)[1]:
        sent += (taken := line.client.send(rest_of))
        rest_of = rest_of[taken:] or frame * 100
        assert sent < 64 << 20, "nothing stops the sender"
    toxi.call("DELETE", cut)
    got = 0
    while got < sent:
        got += len(line.server.recv(1 << 20))
    assert not toxi.closed


def test_a_change_acts_on_open_connections(toxi: Toxi, line: Line) -> None:
    slow = toxi.toxic("latency", latency=HOUR)
    line.server.sendall(MSG)
    toxi.call("GET", "/proxies")
    line.server.sendall(MSG)
    assert quiet(line.client)
    toxi.call("POST", slow, {"attributes": {"latency": 0}})
    gets(line.client, MSG + MSG)
    toxi.call("POST", slow, {"attributes": {"latency": HOUR}})
    toxi.call("POST", slow, {"toxicity": 0})
    line.server.sendall(MSG)
    gets(line.client, MSG)


def test_timeout_loses_bytes_and_ends_the_connection_when_removed(toxi: Toxi, line: Line) -> None:
    gone = toxi.toxic("timeout", timeout=0)
    line.server.sendall(MSG)
    line.client.sendall(PUB)
    gets(line.server, PUB)
    assert quiet(line.client)
    toxi.call("DELETE", gone)
    assert rest(line.client) == b""
    assert rest(line.server) == b""


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_timeout_closes(toxi: Toxi, line: Line, stream: str) -> None:
    toxi.toxic("timeout", stream, timeout=1)
    assert rest(line.client) == b""
    assert rest(line.server) == b""
    line.client.close()
    line.server.close()
    until_closed(toxi)
    assert (toxi.closed[0].cause, toxi.closed[0].detail) == ("rule", f"toxic timeout_{stream}")


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_reset_peer_on_a_new_connection(toxi: Toxi, listener: socket.socket, stream: str) -> None:
    toxi.toxic("reset_peer", stream, timeout=0)
    with Line(toxi, listener) as line:
        if stream == "upstream":
            until(line.client, lambda got: got.endswith(b"\r\n"))
            line.client.sendall(b"CONNECT {}\r\nPING\r\n")
        with pytest.raises(ConnectionResetError):
            rest(line.client)


def test_reset_peer_closes_an_older_connection(toxi: Toxi, line: Line) -> None:
    toxi.toxic("reset_peer", timeout=0)
    line.server.sendall(MSG)
    assert rest(line.client) == b""


@pytest.mark.parametrize("first", ["client", "server"])
def test_slow_close_holds_the_end_back(toxi: Toxi, line: Line, first: str) -> None:
    leaver, other = (line.client, line.server) if first == "client" else (line.server, line.client)
    late = toxi.toxic("slow_close", "upstream" if first == "client" else "downstream", delay=HOUR)
    leaver.shutdown(socket.SHUT_WR)
    toxi.call("GET", "/proxies")
    assert quiet(other)
    toxi.call("DELETE", late)
    assert rest(other) == b""


def test_the_end_waits_for_the_bytes_before_it(toxi: Toxi, line: Line) -> None:
    slow = toxi.toxic("latency", latency=HOUR)
    line.server.sendall(b"-ERR 'Authorization Violation'\r\n")
    line.server.close()
    toxi.call("GET", "/proxies")
    assert quiet(line.client)
    toxi.call("DELETE", slow)
    assert rest(line.client) == b"-ERR 'Authorization Violation'\r\n"


def test_a_connection_that_both_have_left_is_gone(toxi: Toxi, line: Line) -> None:
    """Although a toxic would keep the ends back for ever."""
    for stream in ("upstream", "downstream"):
        toxi.toxic("timeout", stream, timeout=0)
    line.client.close()
    line.server.close()
    until_closed(toxi)


def until_closed(toxi: Toxi) -> None:
    for _ in range(2000):
        if toxi.closed:
            return
        toxi.call("GET", "/version")
    raise AssertionError("the connection stays")


def test_slicer_keeps_the_bytes(toxi: Toxi, line: Line) -> None:
    for stream in ("upstream", "downstream"):
        toxi.toxic("slicer", stream, average_size=3, size_variation=2, delay=10)
    line.server.sendall(MSG * 20)
    gets(line.client, MSG * 20)
    line.client.sendall(PUB * 20)
    gets(line.server, PUB * 20)


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_limit_data_cuts_inside_a_frame(toxi: Toxi, line: Line, stream: str) -> None:
    toxi.toxic("limit_data", stream, bytes=len(MSG) + 7)
    sender, receiver = (line.server, line.client) if stream == "downstream" else (line.client, line.server)
    frames = MSG * 2 if stream == "downstream" else (PUB + PUB + PUB)
    sender.sendall(frames)
    assert rest(receiver) == frames[: len(MSG) + 7]


def test_limit_data_counts_each_connection(toxi: Toxi, listener: socket.socket) -> None:
    most = toxi.toxic("limit_data", "upstream", bytes=len(b"CONNECT {}\r\nPING\r\n") + len(PUB))
    for _ in range(2):
        with Line(toxi, listener) as line:
            line.greet()
            toxi.call("POST", most, {"attributes": {}})
            line.client.sendall(PUB)
            assert rest(line.server) == PUB


def test_chains_keep_the_order_of_creation(toxi: Toxi, line: Line) -> None:
    """Bytes that a limit counts have waited before."""
    slow = toxi.toxic("latency", latency=HOUR)
    toxi.toxic("limit_data", bytes=3)
    line.server.sendall(MSG)
    toxi.call("GET", "/proxies")
    assert quiet(line.client)
    toxi.call("DELETE", slow)
    assert rest(line.client) == MSG[:3]


def test_toxicity_is_drawn_for_each_connection(toxi: Toxi, listener: socket.socket) -> None:
    toxi.call(
        "POST", "/proxies/nats/toxics", {"type": "timeout", "toxicity": 0.5, "attributes": {"timeout": 1}}
    )
    ends = []
    for _ in range(20):
        with Line(toxi, listener) as line:
            said = line.client.recv(100)
            ends.append(not said)
    assert 0 < sum(ends) < 20


def test_disabling_closes_connections_and_keeps_toxics(
    toxi: Toxi, line: Line, listener: socket.socket
) -> None:
    toxi.toxic("noop")
    proxy = toxi.call("GET", "/proxies/nats").json
    assert toxi.call("POST", "/proxies/nats", {"enabled": False}).json["toxics"] == proxy["toxics"]
    assert rest(line.client) == b""
    host, _, port = proxy["listen"].rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 20)
    assert toxi.call("POST", "/proxies/nats", {"enabled": True}).json == proxy
    with Line(toxi, listener) as again:
        again.greet()


def test_deleting_closes_connections(toxi: Toxi, line: Line) -> None:
    toxi.call("DELETE", "/proxies/nats")
    assert rest(line.client) == b""
    toxi.make()


def test_a_client_that_is_lost_ends_its_connection(toxi: Toxi, line: Line) -> None:
    toxi.toxic("bandwidth", "downstream", rate=0)
    line.server.sendall(MSG)
    line.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.client.close()
    assert rest(line.server) == b""
    line.server.close()
    until_closed(toxi)


@pytest.mark.parametrize(
    "upstream", ["\ud800:1", "a" * 300 + ":1", "nats://", "[::1", "x:y:z", "none.invalid:1"]
)
def test_an_upstream_that_cannot_be_dialled(upstream: str, shared: Toxi) -> None:
    """Its clients are closed, and the reason is no bug."""
    listen = shared.make(upstream)["listen"]
    shared.closed.clear()
    with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2])), 20) as client:
        assert client.recv(1) == b""
    until_closed(shared)
    assert shared.closed[0].cause == "upstream-down", shared.closed
    shared.call("DELETE", "/proxies/nats")


async def test_pieces_are_written_one_by_one() -> None:
    """One write would put them into one packet."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        leg = Writes(ours)
        flow = Flow(leg, ToxicTraffic(), lambda _: None)
        attributes = {"average_size": 2, "size_variation": 0, "delay": 0}
        flow.chain.add("cut", STAGES["slicer"](attributes, Random(1), 0))
        flow.put(b"abcdefgh")
        assert leg.writes == [b"ab", b"cd", b"ef", b"gh"]


class Writes(Leg):
    """A leg that notes what it is given."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, keepalive=False)
        self.writes: list[bytes] = []

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        self.writes.append(b"".join(parts))
