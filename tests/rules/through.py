"""Run a nats-py program through a proxy with rules, before a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Event
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS

Program = Callable[[str], Coroutine[Any, Any, None]]


async def through(
    port: int,
    rules: str | RuleChain,
    program: Program,
    *,
    seed: int = 1,
    record: Path | None = None,
    drain: float = 5,
) -> list[Event]:
    """Run `program` (given the proxy's URL) to its end; return the events.  drain: at its end, in seconds."""
    settings = ProxySettings(
        listen=(Listener(),),
        upstream=(Server(Address("127.0.0.1", port)),),
        seed=seed,
        record=RecordSettings(record) if record is not None else None,
    )
    chain = RuleChain(load(rules, KINDS), seed=seed) if isinstance(rules, str) else rules
    proxy = Proxy(settings, chain)
    events: list[Event] = []
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        await trio.to_thread.run_sync(lambda: asyncio.run(program(f"nats://{address}")))
        await proxy.drain(drain)
    return events
