"""Proxies with TLS before real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import HandshakeFirst, TlsSettings, UpstreamTls
from natsproxy.events import Closed, Event, Notice
from natsproxy.net.proxy import Proxy
from natsproxy.units import SECOND
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

LEGS = ("plain", "after INFO", "before INFO")


def server_config(authority: Authority, leg: str, more: str = "") -> str:
    """Return the configuration of a server with a kind of leg."""
    first = "handshake_first: true, " if leg == "before INFO" else ""
    return "" if leg == "plain" else authority.server_config(first + more)


def settings(authority: Authority, client: str, server: str, port: int) -> ProxySettings:
    """Return the settings of a proxy with two kinds of legs."""
    listener = Listener(Address(), "nats" if client == "plain" else "tls")
    return ProxySettings(
        listen=(listener,),
        upstream=(Server(Address("127.0.0.1", port), "nats" if server == "plain" else "tls"),),
        connect_timeout=20 * SECOND,
        auth_timeout=20 * SECOND,
        tls=TlsSettings(
            cert=authority.server() if listener.tls else None,
            handshake_first=HandshakeFirst() if client == "before INFO" else None,
            timeout=20 * SECOND,
        ),
        upstream_tls=UpstreamTls(ca=authority.file, handshake_first=server == "before INFO"),
    )


class Running:
    """A proxy that runs, with its events and its address."""

    def __init__(self, proxy: Proxy, address: Address) -> None:
        self.proxy = proxy
        self.address = address
        self.events: list[Event] = []
        self._closed = trio.Event()
        proxy.subscribe(self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Closed):
            self._closed.set()

    async def closed(self) -> Closed:
        """Return the end of the first connection that ends."""
        with trio.fail_after(20):
            await self._closed.wait()
        return next(event for event in self.events if isinstance(event, Closed))

    @property
    def warnings(self) -> list[str]:
        """The lines that an operator is warned by."""
        return [event.text for event in self.events if isinstance(event, Notice) and event.level == "warning"]


@asynccontextmanager
async def running(settings: ProxySettings, record: Path | None = None) -> AsyncIterator[Running]:
    """Run a proxy; it is drained at the end."""
    if record is not None:
        settings = replace(settings, record=RecordSettings(record))
    proxy = Proxy(settings)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        yield Running(proxy, address)
        await proxy.drain(5)


@asynccontextmanager
async def between(
    authority: Authority, client: str, server: NatsServer, kind: str, **changes: dict[str, Any]
) -> AsyncIterator[Running]:
    """Run a proxy before a server.  client, kind: of the legs.  changes: of its `tls` and `upstream_tls`."""
    made = settings(authority, client, kind, server.port)
    changed = {name: replace(getattr(made, name), **change) for name, change in changes.items()}
    async with running(replace(made, **changed)) as one:
        yield one


async def in_asyncio(program: Callable[[], Awaitable[None]]) -> None:
    """Run a program of nats-py's event loop."""

    async def limited() -> None:
        await asyncio.wait_for(program(), 30)

    await trio.to_thread.run_sync(lambda: asyncio.run(limited()))


def options(authority: Authority, client: str, certificate: Path | None = None) -> dict[str, Any]:
    """Return the options of nats-py for a kind of client leg."""
    if client == "plain":
        return {}
    return {"tls": authority.client_context(certificate), "tls_handshake_first": client == "before INFO"}
