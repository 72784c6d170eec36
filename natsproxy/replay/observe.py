"""What happens in a replay, recorded: a proxy of ours between the two sides, as in front of any server.

Both replays are observed in the same way, so that both give the same report (`compare.py`) of two captures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.config.settings import ProxySettings, RecordSettings
from natsproxy.errors import CaptureError
from natsproxy.net.proxy import Proxy

DRAIN: Final = 5.0
"""Seconds for the last bytes of those who are still connected at the end."""


@asynccontextmanager
async def observe(path: Path, upstream: Address, listen: Address | None = None) -> AsyncIterator[Proxy]:
    """Record what passes to `upstream` while the block runs; yields the proxy, which listens already.

    The capture, one file, is whole after the block.  Raises ConfigError, CaptureError where it cannot begin,
    and CaptureError where the disk did not take all of it.
    """
    record = RecordSettings(path, rotate_size=0, overflow="wait")
    proxy = Proxy(ProxySettings(listen=(listen or Address(),), upstream=upstream, record=record))
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield proxy
        await proxy.drain(DRAIN)  # ends `serve`, and with it the nursery, when the capture is whole
    if proxy.unwritten is not None:
        raise CaptureError(proxy.unwritten)
