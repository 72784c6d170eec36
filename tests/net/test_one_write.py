"""Bytes that came in one read, and that nothing holds back, go on in one write: some clients count on it."""

from __future__ import annotations

import os
import socket
import struct
import sys

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.leg import AnyLeg, Leg
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.wire.scanner import COMPILED
from tests.kit.servers import NatsServer
from tests.kit.stage import HELLO, INFO, stage

if sys.platform != "linux":
    pytest.skip("no TCP_INFO", allow_module_level=True)

ROUNDS = 60
DELIVERY = b"MSG a 1 5\r\nhello\r\n"
PUBLISH = b"PUB a 5\r\nhello\r\n"
TO_CLIENT = {
    "a PONG and an INFO": [b"PONG\r\n", INFO],
    "a PONG behind messages": [DELIVERY * 3, b"PONG\r\n"],
    "messages behind a PONG": [b"PONG\r\n", DELIVERY * 3],
    "messages between two INFOs": [INFO, DELIVERY, INFO],
    "messages that a rule changes between INFOs": [INFO, b"MSG tail.x 1 5\r\nhello\r\n", INFO, DELIVERY],
}
TO_SERVER = {
    "a SUB before a PING": [b"SUB a 1\r\n", b"PING\r\n"],
    "a SUB, a publish, a PING": [b"SUB a 1\r\n", PUBLISH, b"PING\r\n"],
    "publishes around SUBs": [PUBLISH, b"SUB a 1\r\nSUB b 2\r\n", PUBLISH, b"UNSUB 1\r\n", PUBLISH],
}
RULE = '[[rules]]\nname = "r"\nkind = "corrupt"\nsubject = "tail.>"\nop = "MSG"\n'
SEGMENTS = struct.Struct("=100x I 52x I")
"""The members `tcpi_total_retrans` and `tcpi_data_segs_out` of Linux's `struct tcp_info`."""


@pytest.fixture(params=["native", "python"], autouse=True)
def plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose a plane."""
    if request.param == "native" and not COMPILED:
        pytest.skip("not compiled")
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)
    return str(request.param)


class Writes:
    """Counts what the proxy writes to one of its legs: each write is a segment, while those are short."""

    def __init__(self, leg: AnyLeg) -> None:
        assert isinstance(leg, Leg)
        self._leg = leg
        self._last = self._segments()

    def _segments(self) -> int:
        with socket.socket(fileno=os.dup(self._leg.fileno())) as sock:
            again, sent = SEGMENTS.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SEGMENTS.size))
        return int(sent - again)

    def new(self) -> int:
        """Return the number since the last call."""
        before, self._last = self._last, self._segments()
        return self._last - before


@pytest.mark.parametrize("burst", [*TO_CLIENT, *TO_SERVER])
async def test_a_read_is_one_write(burst: str) -> None:
    async with stage(RuleChain(load(RULE, KINDS), seed=1)) as made:
        source, target = await made.connect()
        (relay,) = made.proxy.relays.values()
        if to_client := burst in TO_CLIENT:
            source, target = target, source
        sent = b"".join((TO_CLIENT | TO_SERVER)[burst])
        async with source, target:
            writes = Writes(relay.legs[0 if to_client else 1])
            for _ in range(ROUNDS):
                await source.send_all(sent)
                received = b""
                while received.count(b"\r\n") < sent.count(b"\r\n"):
                    received += await target.receive_some()
                assert received.count(b"\r\n") == sent.count(b"\r\n")
                assert writes.new() == 1


async def greet(proxy: Proxy) -> int:
    """Log in as a client; return the number of writes that bring the PONG and the INFO behind it."""
    async with await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port) as client:
        received = b""
        while b"\r\n" not in received:
            received += await client.receive_some()
        writes, received = Writes(proxy.relays[proxy.accepted].legs[0]), b""
        await client.send_all(HELLO)
        while received.count(b"\r\n") < 2:
            received += await client.receive_some()
        assert received.startswith(b"PONG\r\nINFO ")
        return writes.new()


@pytest.mark.server
async def test_the_pong_of_a_server_and_its_info_are_not_parted() -> None:
    """nats-server sends an INFO with its first PONG; nats.js expects them together."""
    with NatsServer() as server:
        upstream = Server(Address("127.0.0.1", server.port))
        proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=(upstream,)))
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            assert [await greet(proxy) for _ in range(ROUNDS)] == [1] * ROUNDS
            nursery.cancel_scope.cancel()
