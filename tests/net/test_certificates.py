"""Clients that the proxy knows by their certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.format.records import Open
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.settings import Listener, ProxySettings, RecordSettings, Server, TlsSettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import Credentials
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.identity import Identity
from natsproxy.units import SECOND
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

RULES = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "no"\nclient = { tls_subject = "CN=ann,*" }\n'


@pytest.mark.server
async def test_the_subject_of_a_certificate_is_a_client(tmp_path: Path) -> None:
    """It lets the client use the proxy's login, chooses its rules, and is in log and capture."""
    authority = Authority(tmp_path)
    context = authority.client_context(authority.client("ann"))
    refused: list[str] = []

    async def program(url: str) -> None:
        denied = asyncio.Event()

        async def on_error(error: Exception) -> None:
            refused.append(str(error))
            denied.set()

        client = await nats.connect(url, tls=context, error_cb=on_error, user="anybody", password="at all")
        await client.publish("no")
        await asyncio.wait_for(denied.wait(), 30)  # a PING of `flush` may overtake the message
        await client.close()

    events: list[Event] = []
    with NatsServer('authorization { user: "u", password: "p" }') as server:
        settings = ProxySettings(
            listen=(Listener(Address(), "tls"),),
            upstream=(Server(Address("127.0.0.1", server.port)),),
            connect_timeout=30 * SECOND,
            tls=TlsSettings(cert=authority.server(), ca=authority.file),
            identity=Identity(Credentials("u", "p"), "certificate"),
            record=RecordSettings(tmp_path / "x.ncap"),
        )
        proxy = Proxy(settings, RuleChain(load(RULES, KINDS)))
        proxy.subscribe(events.append)
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            await trio.to_thread.run_sync(lambda: asyncio.run(program(f"tls://{address}")))
            await proxy.drain(5)
    (closed,) = [event for event in events if isinstance(event, Closed)]
    (opened,) = [item for _, item in open_capture(tmp_path / "x.ncap").items() if isinstance(item, Open)]
    assert closed.tls_subject == opened.info["tls_subject"]
    assert closed.tls_subject.startswith("CN=ann,")
    assert "permissions violation" in refused[0]
