"""Python callables as programs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import nats
import pytest
import trio

from natsproxy.sweep.function import Function
from natsproxy.sweep.runner import run_once
from natsproxy.sweep.values import ProgramRun
from natsproxy.sweep.worlds import OwnServer
from tests.sweep.kit import trial


async def run(function: Any, folder: Path, library: Any = "asyncio", **options: Any) -> ProgramRun:
    """Run a function once."""
    return await run_once(
        OwnServer(), Function(function, library), folder, options.pop("limit", 10.0), **options
    )


async def publish_and_flush(url: str) -> None:
    """Publish a message, and wait for it."""
    client = await nats.connect(url, name="function")
    try:
        got = await client.subscribe("a")
        await client.publish("a", b"hi")
        await got.next_msg(timeout=0.5)
    finally:
        await client.close()


async def in_trio(url: str) -> None:
    """Connect, and wait without end."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream, trio.open_nursery() as nursery:
        await stream.send_all(b"CONNECT {}\r\nPING\r\n")
        nursery.start_soon(waits_in_trio)


async def waits_in_trio() -> None:
    """Wait without end."""
    await trio.sleep_forever()


async def in_asyncio(url: str) -> None:
    """Connect, and wait without end."""
    client = await nats.connect(url)
    try:
        await waits_in_asyncio()
    finally:
        await client.close()


async def waits_in_asyncio() -> None:
    """Wait without end."""
    await asyncio.Event().wait()


async def test_it_succeeds_or_fails(tmp_path: Path) -> None:
    done = await run(publish_and_flush, tmp_path)
    assert (done.code, done.output, done.problem) == (0, "", "")
    lost = {"name": "lost", "kind": "drop", "op": ["PUB"], "subject": "a"}
    failed = await run(publish_and_flush, tmp_path, trial=trial(lost))
    assert (failed.code, [one.key for one in failed.firings]) == (1, ["function/1"])
    assert failed.output.endswith("TimeoutError: nats: timeout\n")


@pytest.mark.parametrize(
    ("library", "function", "waits"),
    [("asyncio", in_asyncio, waits_in_asyncio), ("trio", in_trio, waits_in_trio)],
)
async def test_time_is_over(library: str, function: Any, waits: Any, tmp_path: Path) -> None:
    """It is cancelled, and the stack names the place where it was."""
    done = await run(function, tmp_path, library, limit=3.0)
    assert (done.code, len(done.open)) == (None, 1)
    assert f" in {waits.__name__}\n" in done.stack
    assert done.problem == ""
    assert "swept" not in [thread.name for thread in threading.enumerate()]


async def test_plain_function(tmp_path: Path) -> None:
    def fails(url: str) -> None:
        asyncio.run(publish_and_flush(url))
        raise SystemExit(4)

    done = await run(fails, tmp_path)
    assert (done.code, done.problem) == (4, "")
