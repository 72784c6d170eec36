"""Servers that refuse our certificate: under TLS 1.3 they do it after our side of the handshake is done."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.config.tls import UpstreamTls
from natsproxy.net import dial, health
from natsproxy.net.tls_leg import TlsLeg
from natsproxy.units import MILLISECOND, SECOND
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer
from tests.net.test_websocket import websocket_port
from tests.net.tls.legs import Running, running, settings

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("_plane")]
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'
UNKNOWN_CA = "TLS: the peer refused: unknown ca"
CLOSED = "TLS: the peer closed the connection, perhaps for a certificate that it does not trust"
PINS = f'verify: true, pinned_certs: ["{"ab" * 32}"]'  # of a certificate that nobody has


@pytest.fixture(params=["native", pytest.param("python", marks=pytest.mark.long)])
def _plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)
    monkeypatch.setattr(dial, "SLOW", 20.0)  # a busy machine must not overtake a server


@pytest.fixture
def _long_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_WAIT", 30 * SECOND)


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No dial waits for a refusal: it comes when the client has its INFO."""
    monkeypatch.setattr(dial, "_SIGN_TIMEOUT", 0)


def config(trusted: Authority, authority: Authority, name: str, leg: str = "after INFO") -> str:
    """Return the configuration of a server with a certificate that we trust.  trusted: by the server."""
    first = "handshake_first: true, " if leg == "before INFO" else ""
    tls = trusted.server_config(f"{first}verify: true", authority.server())
    if leg == "wss":
        tls = f'websocket {{ listen: "127.0.0.1:-1"\n{tls} }}'
    return f"server_name: {name}\n{tls}\n"


def pinned(authority: Authority, name: str) -> str:
    """Return the configuration of a server that trusts our CA, and pins another certificate."""
    return f"server_name: {name}\n{authority.server_config(PINS)}"


@asynccontextmanager
async def before(authority: Authority, leg: str, *ports: int) -> AsyncIterator[Running]:
    """Run a proxy that tries servers in their order, with a certificate of an authority."""
    scheme = leg if leg == "wss" else "tls"
    made = settings(authority, "plain", leg, 0)
    one = authority.client("proxy")
    upstream = tuple(Server(Address("127.0.0.1", port), scheme) for port in ports)
    tls = UpstreamTls(ca=authority.file, cert=one, key=one, handshake_first=leg == "before INFO")
    async with running(replace(made, upstream=upstream, upstream_tls=tls, upstream_randomize=False)) as proxy:
        yield proxy


async def ask(one: Running) -> str:
    """Return the name of the server that serves a new client, "" where the client is lost."""
    stream = await trio.open_tcp_stream("127.0.0.1", one.address.port)
    got = b""
    async with stream:
        with trio.fail_after(20), suppress(trio.BrokenResourceError):
            await stream.send_all(CONNECT)
            while not got.endswith(b"PONG\r\n"):
                data = await stream.receive_some()
                if not data:
                    return ""
                got += data
            return str(json.loads(got.removeprefix(b"INFO ").splitlines()[0])["server_name"])
    return ""


def troubles(one: Running) -> list[str]:
    """Return the warnings about servers."""
    return [text for text in one.warnings if "cannot be used" in text]


@pytest.mark.parametrize("leg", ["after INFO", "before INFO", "wss"])
@pytest.mark.usefixtures("_long_back_off")
async def test_no_client_is_lost_while_another_server_takes_us(
    authority: Authority, stranger: Authority, leg: str
) -> None:
    """The one that refuses us is passed over; one warning has the reason."""
    with (
        NatsServer(config(stranger, authority, "a", leg)) as a,
        NatsServer(config(authority, authority, "b", leg)) as b,
    ):
        ports = [websocket_port(server) if leg == "wss" else server.port for server in (a, b)]
        async with before(authority, leg, *ports) as one:
            assert [await ask(one) for _ in range(3)] == ["b"] * 3
            (trouble,) = troubles(one)
            assert "the peer refused: unknown ca" in trouble
            await one.proxy.try_upstream()
            assert one.proxy.unready is None


@pytest.mark.parametrize("case", ["CA", "pins"])
@pytest.mark.usefixtures("_late", "_long_back_off")
async def test_a_late_refusal_costs_one_client(authority: Authority, stranger: Authority, case: str) -> None:
    """It ends with the cause; the next ones find the other server."""
    first = pinned(authority, "a") if case == "pins" else config(stranger, authority, "a")
    with NatsServer(first) as a, NatsServer(config(authority, authority, "b")) as b:
        async with before(authority, "after INFO", a.port, b.port) as one:
            assert [await ask(one) for _ in range(4)] == ["", "b", "b", "b"]
            assert troubles(one) == [
                f"a server cannot be used: 127.0.0.1:{a.port}: {CLOSED if case == 'pins' else UNKNOWN_CA}"
            ]
            closed = await one.closed()
            causes = {"pins": close_reasons.SERVER_CLOSED, "CA": close_reasons.SERVER_PROTOCOL}
            assert closed.cause == causes[case]
            assert one.proxy.unready is None


@pytest.mark.parametrize(
    ("case", "late"),
    [
        ("CA", False),
        ("pins", True),
        pytest.param("CA", True, marks=pytest.mark.long),
        pytest.param("pins", False, marks=pytest.mark.long),
    ],
)
async def test_a_rotation_back_heals(
    authority: Authority, stranger: Authority, case: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`unready` says the truth of the only server, to its probe and to clients, and so does the log."""
    monkeypatch.setattr(health, "FIRST_WAIT", MILLISECOND)
    if late:
        monkeypatch.setattr(dial, "_SIGN_TIMEOUT", 0)
    refuses = pinned(authority, "a") if case == "pins" else config(stranger, authority, "a")
    with NatsServer(refuses) as a:
        reason = f"127.0.0.1:{a.port}: {CLOSED if case == 'pins' else UNKNOWN_CA}"
        async with before(authority, "after INFO", a.port) as one:
            for _ in range(2):
                await one.proxy.try_upstream()
                assert one.proxy.unready == reason
                assert await ask(one) == ""
                assert one.proxy.unready is not None
            a.stop()
            with NatsServer(config(authority, authority, "a"), port=a.port):
                await one.proxy.try_upstream()
                assert one.proxy.unready is None
                assert await ask(one) == "a"
                assert troubles(one) == [f"the upstream cannot be used: {reason}"]
                assert one.warnings.count("the upstream is back") == 1


async def test_a_server_that_gives_no_sign_is_waited_for_once(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another natsproxy is one: it sends no session tickets.  Its refusal is heard all the same."""
    waits, judged = [], TlsLeg.judged

    async def counted(leg: TlsLeg) -> None:
        waits.append(leg)
        await judged(leg)

    monkeypatch.setattr(TlsLeg, "judged", counted)
    with NatsServer("server_name: a") as server:
        for trusted, names in ((authority, ["a", "a"]), (stranger, ["", ""])):
            made = settings(authority, "after INFO", "plain", server.port)
            waits.clear()
            async with (
                running(replace(made, tls=replace(made.tls, ca=trusted.file))) as behind,
                before(authority, "after INFO", behind.address.port) as one,
            ):
                assert [await ask(one) for _ in range(2)] == names
                assert len(waits) == (1 if trusted is authority else 2)
