"""Streams of server-sent events, in batches, with a keep-alive comment while there are none."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from natsproxy.admin.streamed import Streamed

ALIVE: Final = 10.0
"""Seconds without an event after which a comment is sent."""
BATCH: Final = 0.1
"""Seconds for which events are gathered before they are sent."""
MOST: Final = 200
"""Events in one batch; those beyond are counted as lost."""
MEDIA: Final = "text/event-stream"
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event(name: str, data: Mapping[str, Any], number: int | None = None) -> str:
    """Return one event."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"


def stream(
    batch: Callable[[], Awaitable[list[str]]],
    wait: Callable[[], Awaitable[None]],
) -> Streamed:
    """Return an answer that sends what `batch` returns, whenever `wait` has returned."""

    async def pieces() -> AsyncGenerator[str | bytes, None]:
        yield ": natsproxy\n\n"  # sends the headers at once, so that the reader knows that it is subscribed
        while True:
            events = await batch()
            if events:
                yield "".join(events)
                await trio.sleep(BATCH)
                continue
            with trio.move_on_after(ALIVE) as quiet:
                await wait()
            if quiet.cancelled_caught:
                yield ": alive\n\n"

    return Streamed(pieces(), MEDIA, HEADERS)
