"""The users' API: faults that undo themselves, waiting with limits, cassettes."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import nats
import pytest
import trio
from nats.errors import TimeoutError as NatsTimeout

from natsproxy.errors import ConfigError
from natsproxy.testing import BlockingCall, CassetteMismatch, TestProxy, WaitTimeout, cassette
from tests.kit.servers import NatsServer

pytestmark = pytest.mark.server


def test_a_fault_holds_for_its_with(nats_server: NatsServer) -> None:
    """From a plain test with an asyncio client: in force at once, gone at once, on record."""

    async def program(proxy: TestProxy) -> None:
        nc = await nats.connect(proxy.url)
        sub = await nc.subscribe("t.fault")
        await nc.flush()
        with proxy.fault("drop", subject="t.fault", direction="c2s"):
            await nc.publish("t.fault", b"lost")
            with pytest.raises(NatsTimeout):
                await sub.next_msg(0.3)
        await nc.publish("t.fault", b"kept")
        assert (await sub.next_msg(5)).data == b"kept"
        await proxy.barrier_async()
        await nc.close()

    with TestProxy(nats_server.url) as proxy:
        asyncio.run(program(proxy))
        assert [firing.action for firing in proxy.firings] == ["drop"]
        lost, kept = proxy.frames("t.fault", op="PUB")
        assert (lost.payload, lost.passed, kept.passed) == (b"lost", False, True)


async def test_waiting_from_trio(nats_server: NatsServer) -> None:
    """The blocking form is refused inside a loop; the awaitable one works; a time-out says what was seen."""
    with TestProxy(nats_server.url) as proxy:
        with pytest.raises(BlockingCall, match="await wait_for_async"):
            proxy.wait_for("t.trio")
        host, _, port = proxy.url.removeprefix("nats://").rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b'CONNECT {"verbose":false}\r\nPUB t.trio 2\r\nhi\r\n')
            (frame,) = await proxy.wait_for_async("t.trio")
            assert frame.payload == b"hi"
            await proxy.barrier_async()
        with pytest.raises(WaitTimeout, match=r"t\.never"):
            await proxy.wait_for_async("t.never", timeout=0.05)


def test_a_bad_fault_changes_nothing(nats_server: NatsServer) -> None:
    """One sentence, and the rules stay as they were."""
    with TestProxy(nats_server.url) as proxy:
        with pytest.raises(ConfigError, match="probability"), proxy.fault("drop", probability=1.2):
            pass
        with proxy.fault("drop", subject="x", name="same"):
            assert proxy.barrier() is None


def test_many_starts_and_stops_leave_nothing(nats_server: NatsServer) -> None:
    """No thread and no descriptor stays."""

    def round_trip() -> None:
        with TestProxy(nats_server.url):
            pass

    round_trip()
    threads, descriptors = threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(300):
        round_trip()
    deadline = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < deadline:
        threading.Event().wait(0.05)  # trio's cache of worker threads lets them go after ten seconds
    assert threading.active_count() <= threads
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= descriptors


async def _orders(url: str, body: bytes = b"order") -> bytes:
    nc = await nats.connect(url, name="orders", allow_reconnect=False)

    async def answer(message: object) -> None:
        await message.respond(b"confirmed")  # type: ignore[attr-defined]

    try:
        await nc.subscribe("orders", cb=answer)
        return (await nc.request("orders", body, timeout=3)).data
    finally:
        await nc.close()


def test_a_cassette_plays_what_it_recorded(nats_server: NatsServer, tmp_path: Path) -> None:
    """Recorded once against a real server, then played without one."""
    path = tmp_path / "orders.ncap"
    with cassette(path, "once", upstream=nats_server.url) as tape:
        assert asyncio.run(_orders(tape.url)) == b"confirmed"
    with cassette(path) as tape:
        assert asyncio.run(_orders(tape.url)) == b"confirmed"
        assert tape.unused() == []

    async def another(url: str) -> None:
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client makes of an -ERR
            await _orders(url, b"something else")

    with pytest.raises(CassetteMismatch, match="something else"), cassette(path) as tape:
        asyncio.run(another(tape.url))
