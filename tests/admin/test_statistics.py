"""Connections add up: those accepted are open or have ended for a cause, whatever their clients do."""

from __future__ import annotations

import random

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.admin.statistics import Statistics
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.values import FROM_CLIENT, TO_SERVER
from natsproxy.testing import NatsServer
from natsproxy.wire.ops import Op

RULES = '[[rules]]\nname = "no"\nkind = "refuse"\nevery = 5\nper = "proxy"\n'
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'
SAID = {
    "probe": b"",
    "garbage": CONNECT + b"NONSENSE\r\n",
    "quit": CONNECT + b"PUB a 1\r\nx\r\n",
    "stay": CONNECT + b"SUB a 1\r\n",
}


async def client(port: int, manner: str, kept: list[trio.SocketStream]) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        # INFO first: one that leaves before its turn meets no rule.
        await stream.receive_some()
        if SAID[manner]:
            await stream.send_all(SAID[manner])
            await stream.receive_some()
    except trio.BrokenResourceError:  # refused
        pass
    if manner == "stay":
        kept.append(stream)
    else:
        await stream.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_accepted_are_open_or_ended(nats_server: NatsServer, seed: int) -> None:
    settings = ProxySettings(
        listen=(Listener(),), upstream=(Server(Address("127.0.0.1", nats_server.port)),), seed=seed
    )
    proxy = Proxy(settings, RuleChain(load(RULES, KINDS), seed=seed))
    reports: list[str] = []
    statistics, kept = Statistics(proxy, reports.append), list[trio.SocketStream]()
    manners = random.Random(seed).choices(list(SAID), k=40)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        async with trio.open_nursery() as clients:
            for manner in manners:
                clients.start_soon(client, address.port, manner, kept)
        with trio.fail_after(20):
            while proxy.accepted < len(manners) or proxy.connections.open != len(proxy.relays):
                assert proxy.accepted == proxy.connections.open + statistics.causes.total()
                await trio.lowlevel.checkpoint()
        traffic, subscriptions = await statistics.traffic()
        assert subscriptions <= manners.count("stay")
        assert traffic.frames(FROM_CLIENT)[Op.PUB] == traffic.frames(TO_SERVER)[Op.PUB]
        for stream in kept:
            await stream.aclose()
        await proxy.drain(5)
    assert (proxy.accepted, proxy.connections.open) == (len(manners), 0)
    assert statistics.causes.total() == len(manners)
    assert statistics.causes["rule"] == len(manners) // 5
    assert len(statistics.closed) <= len(manners)
    assert reports == []
