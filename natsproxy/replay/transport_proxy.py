"""A proxy between a playback and its peers: playbacks speak NATS over plain TCP, the proxy TLS and WebSocket.

Peers that speak plain TCP are connected directly.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import UpstreamTls
from natsproxy.errors import ConfigError
from natsproxy.net.proxy import Proxy
from natsproxy.replay.errors import ServerLost
from natsproxy.rules.interface import Chain

DRAIN: Final = 5.0
"""Seconds in which connections that are still open at the end may finish."""


@asynccontextmanager
async def running_proxy(settings: ProxySettings, chain: Chain | None = None) -> AsyncIterator[Proxy]:
    """Run a proxy for the length of the block, then drain it; yields it once it listens."""
    proxy = Proxy(settings, chain)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield proxy
        # Ends `serve`, and with it the nursery, when a capture is whole.
        await proxy.drain(DRAIN, answers=False)


@asynccontextmanager
async def plain_upstream(legs: ProxySettings, *, now: bool = False) -> AsyncIterator[Address | None]:
    """Yield the address at which the upstream of `legs` speaks NATS over plain TCP; None without an upstream.

    now: raise ConfigError, with the reason, if it cannot be used at the start.
    """
    if not legs.upstream:
        yield None
        return
    (server,) = legs.upstream
    if server.scheme == "nats" and legs.upstream_tls == UpstreamTls():
        yield server.address
        return
    async with running_proxy(replace(legs, listen=(Listener(),))) as proxy:
        if now:
            await proxy.try_upstream()
            if proxy.unready is not None:
                raise ConfigError(proxy.unready)
        try:
            yield proxy.listen[0]
        except ServerLost as lost:  # by the proxy, which knows the reason
            raise ServerLost(proxy.unready or str(lost)) from None


@asynccontextmanager
async def client_url(legs: ProxySettings, behind: Address) -> AsyncIterator[str]:
    """Yield the URL for clients of the listener of `legs`.

    behind: the address of the playback; that of a listener for plain NATS is the playback's own.
    """
    (listener,) = legs.listen
    if listener.scheme == "nats":
        yield f"nats://{behind}"
        return
    async with running_proxy(replace(legs, upstream=(Server(behind),), upstream_tls=UpstreamTls())) as proxy:
        yield f"{listener.scheme}://{proxy.listen[0]}"


def inner_address(legs: ProxySettings) -> Address:
    """Return the address for a playback to listen on, so that `client_url` can have the listener's."""
    (listener,) = legs.listen
    return listener.address if listener.scheme == "nats" else Address()
