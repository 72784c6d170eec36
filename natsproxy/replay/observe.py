"""A recording proxy in front of a playback.

Both playbacks are recorded in the same way, as any server is, so that `diff/compare.py` can hold the new
capture against the old one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from natsproxy.addresses import Address
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import CaptureError
from natsproxy.net.proxy import Proxy
from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions
from natsproxy.replay.transport_proxy import running_proxy


@asynccontextmanager
async def observe(
    path: Path,
    upstream: Address,
    listen: Address | None = None,
    options: MatchOptions = DEFAULT,
) -> AsyncIterator[Proxy]:
    """Record the traffic to `upstream` while the block runs; yield the proxy, which listens already.

    The capture is one file, complete after the block.  options: of a cassette; they are stored in it, and
    their filters apply.  Raises ConfigError or CaptureError if recording cannot begin, and CaptureError if
    the disk could not take all of it.
    """
    # One file without gaps: a comparison needs every frame, so recording may slow the traffic down.
    record = RecordSettings(
        path,
        rotate_size=0,
        overflow="wait",
        selection=Selection(filters=options.filters),
        cassette=options.stored(),
    )
    listener = Listener(listen or Address())
    async with running_proxy(
        ProxySettings(listen=(listener,), upstream=(Server(upstream),), record=record)
    ) as proxy:
        yield proxy
    if proxy.unwritten is not None:
        raise CaptureError(proxy.unwritten)
