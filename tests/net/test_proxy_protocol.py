"""The PROXY protocol on both legs: load balancers before the proxy, and real servers behind it."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.format.records import OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server, read_listener
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Opened
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.proxy_header import write
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.units import SECOND
from tests.kit.servers import NatsServer, executable

pytestmark = pytest.mark.server
CLIENT, DIALLED = Address("192.0.2.7", 7777), Address("192.0.2.1", 4222)
HELLO = b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'
LOOPBACK = (ip_network("127.0.0.0/8"),)
ELSEWHERE = (ip_network("10.0.0.0/8"), ip_network("::1/128"))


def settings_for(server: NatsServer, networks: Any = LOOPBACK, **more: Any) -> ProxySettings:
    settings = ProxySettings(
        listen=(Listener(proxy_protocol=networks),),
        upstream=(Server(Address("127.0.0.1", server.port)),),
        connect_timeout=30 * SECOND,
        auth_timeout=30 * SECOND,
    )
    return replace(settings, **more)


@asynccontextmanager
async def proxied(
    settings: ProxySettings, rules: str = "", sockets: Sequence[socket.socket] = ()
) -> AsyncIterator[tuple[Address, list[Event]]]:
    """Run a proxy, and drain it at the end."""
    proxy = Proxy(settings, RuleChain(load(rules, KINDS)) if rules else None, sockets)
    events: list[Event] = []
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        yield address, events
        await proxy.drain(5)


async def talk(address: Address, pieces: list[bytes], until: bytes = b"") -> bytes:
    """Send pieces one after the other; return what comes, to the end or to the line of the given bytes."""
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        for piece in pieces:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        received = b""
        with trio.fail_after(30):
            while not until or until not in received or not received.endswith(b"\r\n"):
                try:
                    more = await stream.receive_some(4096)
                except trio.BrokenResourceError:  # closed while bytes of ours were unread
                    break
                if not more:
                    break
                received += more
        return received


@pytest.mark.parametrize("release", ["2.15", pytest.param("2.12", marks=pytest.mark.long)])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("plane", ["native", "python"])
async def test_the_real_address_goes_all_the_way(
    plane: str, version: int, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a load balancer over two proxies to the server, which tells it to the client."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    capture = tmp_path / "x.ncap"
    with NatsServer("proxy_protocol: true", executable=executable(release)) as server:
        inner = settings_for(server, upstream_proxy_protocol=version, record=RecordSettings(capture))
        async with proxied(inner) as (address, events):
            outer = replace(inner, upstream=(Server(address),), record=None)
            async with proxied(outer) as (front, _):
                header = write(3 - version, CLIENT, DIALLED)
                said = await talk(front, [header + HELLO], b'"connect_info":true')
        infos = [json.loads(line[5:]) for line in said.split(b"\r\n") if line.startswith(b"INFO")]
        assert infos[-1]["client_ip"] == CLIENT.host
        assert {(info["host"], info["port"]) for info in infos} == {(DIALLED.host, DIALLED.port)}
    (opened,) = [event for event in events if isinstance(event, Opened)]
    assert opened.client == str(CLIENT)
    assert opened.proxied_by.startswith("127.0.0.1:")
    (item,) = [item for _, item in open_capture(capture).items() if isinstance(item, OpenRecord)]
    assert (item.info["client"], item.info["proxied_by"]) == (str(CLIENT), opened.proxied_by)


@pytest.mark.parametrize("version", [1, 2])
async def test_the_header_may_come_byte_by_byte(nats_server: NatsServer, version: int) -> None:
    """And the client's first bytes in the same segment as its last ones."""
    stream = write(version, CLIENT, DIALLED) + HELLO
    pieces = [stream[at : at + 1] for at in range(len(stream) - len(HELLO) - 1)]
    async with proxied(settings_for(nats_server)) as (address, events):
        assert b"PONG" in await talk(address, [*pieces, stream[len(pieces) :]], b"PONG")
    assert [event.client for event in events if isinstance(event, Opened)] == [str(CLIENT)]


async def test_rules_go_by_the_real_address(nats_server: NatsServer) -> None:
    """Not by the load balancer's."""
    rules = '[[rules]]\nname = "r"\nkind = "refuse"\nclient = { address = "192.0.2.0/24" }\n'
    async with proxied(settings_for(nats_server), rules) as (address, events):
        assert await talk(address, [write(1, CLIENT, DIALLED) + HELLO]) == b""
        assert b"PONG" in await talk(address, [write(2) + HELLO], b"PONG")
    causes = {event.conn: event.cause for event in events if isinstance(event, Closed)}
    assert causes[1] == close_reasons.RULE


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 99999\r\n" + HELLO, "a PROXY line with an invalid port"),
        (HELLO, "the first bytes are not a PROXY protocol header"),
        (b"PROXY TCP4 " + b"1" * 4096, "a PROXY line of more than 107 bytes"),
        (write(2, CLIENT, DIALLED)[:14] + b"\xff\xff", "a PROXY header of 65551 bytes; 1024 are allowed"),
    ],
)
async def test_hostile_headers_are_refused(nats_server: NatsServer, sent: bytes, why: str) -> None:
    """Without a word, as nats-server does; the log has the reason and who it was."""
    async with proxied(settings_for(nats_server)) as (address, events):
        assert await talk(address, [sent]) == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.CLIENT_PROTOCOL
    assert closed.who.client.startswith("127.0.0.1:")
    assert closed.detail == why


async def test_a_header_that_does_not_end(nats_server: NatsServer) -> None:
    """Is waited for as long as a client's first bytes."""
    async with proxied(settings_for(nats_server, auth_timeout=SECOND // 10)) as (address, events):
        assert await talk(address, [b"PROXY TCP4 "]) == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.detail == "no PROXY header came in the auth time-out"


async def test_only_the_listed_networks_may_claim_an_address(nats_server: NatsServer) -> None:
    """A client from elsewhere is served without a header, and refused with one."""
    async with proxied(settings_for(nats_server, ELSEWHERE)) as (address, events):
        assert b"PONG" in await talk(address, [HELLO], b"PONG")
        for version in (1, 2):
            _, _, said = (await talk(address, [write(version, CLIENT, DIALLED) + HELLO])).partition(b"\r\n")
            assert said == b"-ERR 'Unknown Protocol Operation'\r\n"
    assert all(event.client.startswith("127.0.0.1:") for event in events if isinstance(event, Opened))
    refused = [event.detail for event in events if isinstance(event, Closed) and event.conn > 1]
    assert len(refused) == 2
    assert all("it comes from no network that the listener names" in detail for detail in refused)


async def test_an_address_of_ipv4_is_one_on_a_socket_for_both_families(nats_server: NatsServer) -> None:
    """As systemd passes it: a rule about a network holds there as well."""
    rules = '[[rules]]\nname = "r"\nkind = "refuse"\nclient = { address = "127.0.0.0/8" }\n'
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        address = Address("127.0.0.1", both.getsockname()[1])
        settings = settings_for(nats_server, listen=(Listener(Address("::", address.port)),))
        async with proxied(settings, rules, (both,)) as (_, events):
            assert await talk(address, []) == b""
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert closed.cause == close_reasons.RULE
    assert closed.who.client.startswith("127.0.0.1:")


def test_a_listener_names_its_load_balancers() -> None:
    """In its address; a mistake is one sentence."""
    found = read_listener("nats://[::1]:4222?proxy_protocol=10.0.0.0/8, ::1")
    assert found.address == Address("::1", 4222)
    assert str(found) == "nats://[::1]:4222?proxy_protocol=10.0.0.0/8,::1/128"
    assert read_listener(str(found)) == found
    for text in (
        "h:1?",
        "h:1?proxy_protocol",
        "h:1?proxy_protocol=here",
        "h:1?proxy=::1",
        "h:1?a=10.0.0.1/8",
    ):
        with pytest.raises(ValueError, match=r"may end with the networks of load balancers"):
            read_listener(text)
