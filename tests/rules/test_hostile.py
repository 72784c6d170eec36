"""Hostile CONNECTs: names and options of a client cannot harm other clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.format import records
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.servers import NatsServer

NAMES = (rb"\ud800", rb"\udcff", b"\xff\xfe", rb"\u0000", b"", b"x" * 3000)


@pytest.mark.server
async def test_odd_names_meet_rules_and_recorder(nats_server: NatsServer, tmp_path: Path) -> None:
    capture = tmp_path / "c.ncap"
    text = '[[rules]]\nname = "r"\nkind = "drop"\nop = "PUB"\nclient = { name = "*" }\nprobability = 1.0\n'
    upstream = Address("127.0.0.1", nats_server.port)
    settings = ProxySettings(
        listen=(Listener(),), upstream=(Server(upstream),), record=RecordSettings(capture)
    )
    proxy = Proxy(settings, RuleChain(load(text, KINDS)))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        for name in NAMES:
            async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:
                received = b""
                await stream.send_all(
                    b'CONNECT {"name":"%s","verbose":false}\r\nPUB a 0\r\n\r\nPING\r\n' % name
                )
                with trio.fail_after(10):
                    while b"PONG\r\n" not in received:
                        received += await stream.receive_some(65536)
        await proxy.drain(5)
    keys = [
        item.info["key"]
        for _, item in open_capture(capture).items()
        if isinstance(item, records.FiringRecord)
    ]
    assert keys == ["\ufffd/1", "\ufffd/2", "\ufffd\ufffd/1", "\x00/1", "#5", f"{'x' * 3000}/1"]
