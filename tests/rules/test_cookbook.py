"""The cookbook: each recipe, as it is printed, does to nats-py what its sentence says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import nats
import pytest
import trio
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig
from nats.js.errors import ServiceUnavailableError
from trio.testing import MockClock

from natsproxy.events import Firing
from natsproxy.net import proxy
from natsproxy.net.clock import now_ns
from natsproxy.rules.cookbook import COOKBOOK
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.units import SECOND
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.rules.through import through

pytestmark = pytest.mark.server

Jump = Callable[[float], None]
"""Moves the proxy's clock on, by seconds."""
Program = Callable[[str, NatsServer], Awaitable[None]]
ProgramInTime = Callable[[str, NatsServer, Jump], Awaitable[None]]
PROGRAMS: dict[str, Program] = {}
IN_TIME: dict[str, ProgramInTime] = {}
"""The programs by the names of recipes.  They get the proxy's URL and the server; some move the clock."""
USERS = """
authorization { users: [ { user: "ann", password: "a-pw" }, { user: "guest", password: "g-pw" } ] }
no_auth_user: guest
"""
"""For the recipe that is about them."""
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": 100}


def recipe(program: Program) -> Program:
    """Note the program of the recipe that has its name."""
    PROGRAMS[program.__name__.replace("_", "-")] = program
    return program


def recipe_in_time(program: ProgramInTime) -> ProgramInTime:
    """Do the same for a program that moves the clock."""
    IN_TIME[program.__name__.replace("_", "-")] = program
    return program


class Called(asyncio.Event):
    """An event with a callback for nats-py."""

    async def note(self, *about: Any) -> None:
        self.about = about
        self.set()

    async def within(self, seconds: float = 5) -> tuple[Any, ...]:
        await asyncio.wait_for(self.wait(), seconds)
        return self.about


async def stream(nc: Any) -> Any:
    js = nc.jetstream(timeout=0.3)
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    return js


@recipe
async def lost_publish_ack(url: str, server: NatsServer) -> None:
    nc = await nats.connect(url)
    js = await stream(nc)
    for _ in range(2):
        await js.publish("orders.a", b"")
    with pytest.raises(asyncio.TimeoutError):
        await js.publish("orders.a", b"third")
    assert (await js.publish("orders.a", b"third")).seq == 4  # the first one was stored too
    await js.delete_stream("ORDERS")
    await nc.close()


@recipe
async def duplicate_delivery(url: str, server: NatsServer) -> None:
    nc = await nats.connect(url)
    sub = await nc.subscribe("orders.>")
    for body in (b"1", b"2"):
        await nc.publish("orders.a", body)
    assert [(await sub.next_msg(5)).data for _ in range(4)] == [b"1", b"1", b"2", b"2"]
    await nc.close()


@recipe
async def redelivery_storm(url: str, server: NatsServer) -> None:
    nc = await nats.connect(url)
    js = await stream(nc)
    await js.publish("orders.a", b"")
    sub = await js.subscribe("orders.a", manual_ack=True, config=ConsumerConfig(ack_wait=0.1, max_deliver=3))
    for delivered in (1, 2, 3):
        message = await sub.next_msg(5)
        assert message.metadata.num_delivered == delivered
        await message.ack()
    await js.delete_stream("ORDERS")
    await nc.close()


@recipe
async def corrupted_payload(url: str, server: NatsServer) -> None:
    nc = await nats.connect(url)
    sub = await nc.subscribe("orders.>")
    for _ in range(10):
        await nc.publish("orders.a", b"hello world")
    bodies = [(await sub.next_msg(5)).data for _ in range(10)]
    assert bodies[:9] == [b"hello world"] * 9
    assert bodies[9] != b"hello world"
    assert len(bodies[9]) == 11
    await nc.close()


@recipe
async def cut_in_mid_message(url: str, server: NatsServer) -> None:
    lost, back = Called(), Called()
    nc = await nats.connect(url, disconnected_cb=lost.note, reconnected_cb=back.note, **QUICK)
    sub = await nc.subscribe("orders.>")
    await settle(nc)
    source = await nats.connect(server.url)
    for number in range(4):
        await source.publish("orders.a", b"%d" % number * 100)
    assert [(await sub.next_msg(5)).data[:1] for _ in range(3)] == [b"0", b"1", b"2"]
    await lost.within()
    await back.within()
    await settle(nc)
    await source.publish("orders.a", b"after")
    assert (await sub.next_msg(5)).data == b"after"
    await source.close()
    await nc.close()


@recipe_in_time
async def reconnect_storm(url: str, server: NatsServer, jump: Jump) -> None:
    lost, back = [Called() for _ in range(3)], [Called() for _ in range(3)]
    clients = [
        await nats.connect(url, disconnected_cb=gone.note, reconnected_cb=again.note, **QUICK)
        for gone, again in zip(lost, back, strict=True)
    ]
    jump(10)
    for gone in lost:
        await gone.within()
    jump(1)
    for again in back:
        await again.within()
    for nc in clients:
        await nc.close()


@recipe
async def refused_connects(url: str, server: NatsServer) -> None:
    failed = Called()
    nc = await nats.connect(url, error_cb=failed.note, **QUICK)
    assert failed.is_set()
    await nc.flush()
    await nc.close()


@recipe_in_time
async def half_open(url: str, server: NatsServer, jump: Jump) -> None:
    lost, back = Called(), Called()
    nc = await nats.connect(
        url,
        ping_interval=0.05,
        max_outstanding_pings=2,
        disconnected_cb=lost.note,
        reconnected_cb=back.note,
        **QUICK,
    )
    await nc.flush()
    jump(10)
    await lost.within()
    await back.within()
    await nc.flush()
    await nc.close()


@recipe_in_time
async def lame_duck(url: str, server: NatsServer, jump: Jump) -> None:
    told = Called()
    nc = await nats.connect(url, lame_duck_mode_cb=told.note)
    await settle(nc)
    assert not told.is_set()
    jump(10)
    await told.within()
    await nc.flush()
    await nc.close()


@recipe_in_time
async def denied_for_two_seconds(url: str, server: NatsServer, jump: Jump) -> None:
    denied = Called()
    nc = await nats.connect(url, error_cb=denied.note)
    source = await nats.connect(server.url)
    sub = await source.subscribe("orders.>")
    await settle(source)
    await nc.publish("orders.a", b"denied")
    (error,) = await denied.within()
    assert 'permissions violation for publish to "orders.a"' in str(error).lower()
    jump(2)
    await nc.publish("orders.a", b"passes")
    assert (await sub.next_msg(5)).data == b"passes"
    await source.close()
    await nc.close()


@recipe_in_time
async def slow_consumer(url: str, server: NatsServer, jump: Jump) -> None:
    lost = Called()
    nc = await nats.connect(url, name="dashboard", disconnected_cb=lost.note, allow_reconnect=False)
    await nc.subscribe("orders.>")
    await settle(nc)
    jump(1)
    source = await nats.connect(server.url)
    while "Slow Consumer Detected" not in server.log():
        await source.publish("orders.a", bytes(1 << 20))
        await source.flush()
    assert not lost.is_set()
    jump(19)
    await lost.within()
    await source.close()
    await nc.close()


@recipe
async def no_quorum(url: str, server: NatsServer) -> None:
    nc = await nats.connect(url)
    js = nc.jetstream()
    for call in (js.publish("orders.a", b""), js.account_info()):
        with pytest.raises(ServiceUnavailableError) as raised:
            await call
        assert (raised.value.code, raised.value.err_code) == (503, 10008)
    await nc.close()


@recipe_in_time
async def slow_api(url: str, server: NatsServer, jump: Jump) -> None:
    nc = await nats.connect(url)
    with pytest.raises(asyncio.TimeoutError):
        await nc.jetstream(timeout=0.1).account_info()
    slow = asyncio.create_task(nc.jetstream(timeout=5).account_info())
    while not slow.done():
        jump(1)
        await asyncio.sleep(0.01)
    assert (await slow).memory == 0
    await nc.close()


@recipe
async def small_payloads(url: str, server: NatsServer) -> None:
    nc = await nats.connect(url)
    await nc.publish("orders.a", bytes(64 << 10))
    with pytest.raises(nats.errors.MaxPayloadError):
        await nc.publish("orders.a", bytes((64 << 10) + 1))
    await nc.close()


@recipe_in_time
async def thin_line(url: str, server: NatsServer, jump: Jump) -> None:
    nc = await nats.connect(url)
    sub = await nc.subscribe("orders.>")
    await nc.publish("orders.a", bytes(14_000))  # two seconds up, two seconds down
    begun, jumped, got = time.monotonic(), 0.0, asyncio.create_task(sub.next_msg(5))
    while not got.done():
        jump(0.1)
        jumped += 0.1
        await asyncio.sleep(0.001)
    assert len((await got).data) == 14_000
    assert jumped + time.monotonic() - begun > 3.5
    await nc.close()


async def run(name: str, program: Program) -> None:
    """Run a program through the proxy with a recipe, and tell whether each of its rules has fired."""
    more = USERS if name == "verified-sender" else ""
    with NatsServer(f'write_deadline: "200ms"\nmax_pending: 4MB\n{more}', jetstream=True) as server:

        async def with_server(url: str) -> None:
            await program(url, server)

        events = await through(server.port, COOKBOOK[name].text, with_server, drain=0)
    fired = [event.rule for event in events if isinstance(event, Firing)]
    assert set(fired) == {rule.name for rule in load(COOKBOOK[name].text, KINDS)}
    assert name != "refused-connects" or len(fired) == 3


@recipe
async def keep_streams(url: str, server: NatsServer) -> None:
    denied = Called()
    nc = await nats.connect(url, error_cb=denied.note)
    js = await stream(nc)
    await js.publish("orders.a", b"kept")
    for call in ("STREAM.DELETE.ORDERS", "STREAM.PURGE.ORDERS", "STREAM.MSG.DELETE.ORDERS"):
        for prefix in ("$JS.API", "$JS.here.API"):
            denied.clear()
            await nc.publish(f"{prefix}.{call}", b"{}", "_INBOX.x")
            assert f'publish to "{prefix}.{call}"'.lower() in str((await denied.within())[0]).lower()
    denied.clear()
    await nc.publish("orders.a", b"instead", headers={"Nats-Rollup": "all"})
    assert 'publish to "orders.a"' in str((await denied.within())[0]).lower()
    assert (await js.stream_info("ORDERS")).state.messages == 1
    await nc.close()
    direct = await nats.connect(server.url)
    await direct.jetstream().delete_stream("ORDERS")
    await direct.close()


@recipe
async def approved_deletions(url: str, server: NatsServer) -> None:
    denied = Called()
    nc = await nats.connect(url, error_cb=denied.note)
    js = await stream(nc)
    for headers in (None, {"X-Approved": "yes"}):
        denied.clear()
        await nc.publish("$JS.API.STREAM.DELETE.ORDERS", b"", "_INBOX.x", headers)
        assert 'publish to "$js.api.stream.delete.orders"' in str((await denied.within())[0]).lower()
    assert (await js.stream_info("ORDERS")).config.name == "ORDERS"
    answer = await nc.request("$JS.API.STREAM.DELETE.ORDERS", headers={"X-Approved": "TICKET-7"})
    assert json.loads(answer.data)["success"] is True
    await nc.close()


@recipe
async def no_wide_subscriptions(url: str, server: NatsServer) -> None:
    denied = Called()
    nc = await nats.connect(url, error_cb=denied.note)
    for wide in (">", "*", "*.a", "*.>"):
        denied.clear()
        await nc.subscribe(wide)
        assert f'subscription to "{wide}"' in str((await denied.within())[0]).lower()
    sub = await nc.subscribe("orders.>")
    await nc.publish("orders.a", b"1")
    assert (await sub.next_msg(5)).data == b"1"
    await nc.request("$JS.API.INFO", timeout=5)  # the inbox of requests is narrow enough
    await nc.close()


@recipe_in_time
async def quiet_hours(url: str, server: NatsServer, jump: Jump) -> None:
    denied = Called()
    nc = await nats.connect(url, error_cb=denied.note)
    sub = await nc.subscribe("orders.>")
    await nc.publish("orders.a", b"evening")
    assert (await sub.next_msg(5)).data == b"evening"
    jump(30 * 60)
    await nc.publish("orders.a", b"night")
    assert 'publish to "orders.a"' in str((await denied.within())[0]).lower()
    jump(8 * 3600)
    await nc.publish("orders.a", b"morning")
    assert (await sub.next_msg(5)).data == b"morning"
    await nc.close()


@recipe
async def read_only(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)
    source = await stream(direct)
    await source.publish("orders.a", b"1")
    denied = Called()
    nc = await nats.connect(url, user="viewer-1", password="x", error_cb=denied.note)
    js = nc.jetstream()
    reader = await js.pull_subscribe("orders.>", durable="reader")
    (message,) = await reader.fetch(1, timeout=5)
    await message.ack()
    assert (await js.get_msg("ORDERS", 1)).data == b"1"
    await nc.publish("orders.a", b"2")
    assert 'publish to "orders.a"' in str((await denied.within())[0]).lower()
    await nc.close()
    assert (await source.stream_info("ORDERS")).state.messages == 1
    await source.delete_stream("ORDERS")
    await direct.close()


@recipe
async def tenant_prefix(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)
    watched = await direct.subscribe("tenant-a.orders.>")
    await settle(direct)
    nc = await nats.connect(url, user="a-1", password="x")
    js = await stream(nc)
    await js.publish("orders.a", b"1")
    assert (await watched.next_msg(5)).subject == "tenant-a.orders.a"
    assert (await js.get_msg("ORDERS", 1)).subject == "orders.a"
    await js.delete_stream("ORDERS")
    await nc.close()
    await direct.close()


@recipe
async def payload_limit(url: str, server: NatsServer) -> None:
    lost = Called()
    direct = await nats.connect(server.url)
    sub = await direct.subscribe("orders.>")
    await settle(direct)
    nc = await nats.connect(url, closed_cb=lost.note, allow_reconnect=False)
    await nc.publish("orders.a", bytes(65_536))
    assert len((await sub.next_msg(5)).data) == 65_536
    await nc.publish("orders.a", bytes(65_537))
    await lost.within()
    assert "maximum payload violation" in str(nc.last_error).lower()
    await direct.publish("orders.b", b"")
    assert (await sub.next_msg(5)).subject == "orders.b"  # the large one did not reach the server
    await direct.close()


@recipe
async def request_limit(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)

    async def bill(message: Msg) -> None:
        await message.respond(b"bill")

    await direct.subscribe("billing.>", cb=bill)
    await settle(direct)
    found, before = [], time.monotonic()
    for _ in range(2):
        nc = await nats.connect(url, name="shop")
        for _ in range(40):
            answer = await nc.request("billing.a", b"", timeout=5)
            found.append((answer.headers or {}).get("Status") or answer.data)
        await nc.close()
    assert found[:10] == [b"bill"] * 10
    assert found.count(b"bill") <= 10 + 5 * (time.monotonic() - before)
    assert found.count(b"bill") + found.count("429") == 80
    await direct.close()


@recipe
async def publish_rate(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)
    sub = await direct.subscribe("orders.>")
    await settle(direct)
    nc = await nats.connect(url)
    loop = asyncio.get_running_loop()
    before = loop.time()
    for number in range(30):
        await nc.publish("orders.a", b"%d" % number)
    assert [(await sub.next_msg(5)).data for _ in range(30)] == [b"%d" % number for number in range(30)]
    assert loop.time() - before >= 0.45
    await nc.close()
    await direct.close()


@recipe
async def verified_sender(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)
    sub = await direct.subscribe("orders.>")
    await settle(direct)
    forged = {"Nats-Sender-User": "root", "A": "b"}
    for login in ({"user": "ann", "password": "a-pw"}, {}):
        nc = await nats.connect(url, **login)
        await nc.publish("orders.a", b"", headers=forged)
        await nc.close()
    own = {"Nats-Sender-User": "ann", "Nats-Sender-Account": "$G", "Nats-Sender-By": "server"}
    assert (await sub.next_msg(5)).headers == {**own, "A": "b"}
    assert (await sub.next_msg(5)).headers == {"A": "b"}
    await direct.publish("orders.a", b"", headers=forged)
    assert (await sub.next_msg(5)).headers == forged
    await direct.close()


@recipe
async def no_claimed_identity(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)
    sub = await direct.subscribe("who")
    await settle(direct)
    nc = await nats.connect(url)
    await nc.publish("who", b"", headers={"Nats-Request-Info": '{"user":"root"}', "Trace": "1"})
    assert (await sub.next_msg(5)).headers == {"Trace": "1"}
    await nc.close()
    await direct.close()


@recipe
async def no_redirected_traces(url: str, server: NatsServer) -> None:
    direct = await nats.connect(server.url)
    traces, sub = await direct.subscribe("traces"), await direct.subscribe("orders.>")
    await settle(direct)
    nc = await nats.connect(url)
    await nc.publish("orders.a", b"1", headers={"Nats-Trace-Dest": "traces", "A": "b"})
    assert (await sub.next_msg(5)).headers == {"A": "b"}
    await direct.publish("orders.b", b"2", headers={"Nats-Trace-Dest": "traces"})
    trace = await traces.next_msg(5)  # the first one
    assert b'"orders.b"' in trace.data
    assert b'"orders.a"' not in trace.data
    await nc.close()
    await direct.close()


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_client_sees_what_the_recipe_says(name: str) -> None:
    await run(name, PROGRAMS[name])


@pytest.mark.parametrize("name", IN_TIME)
async def test_a_client_sees_it_in_time(
    name: str, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_clock.rate = 1.0  # it goes as a real one, and can be moved on
    evening = datetime(2026, 11, 26, 21, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    begin = int(evening.timestamp()) * SECOND - now_ns()
    monkeypatch.setattr(proxy, "unix_ns", begin.__add__)

    async def program(url: str, server: NatsServer) -> None:
        await IN_TIME[name](url, server, lambda seconds: trio.from_thread.run_sync(mock_clock.jump, seconds))

    await run(name, program)


def test_a_recipe_is_a_rules_file() -> None:
    for name, one in COOKBOOK.items():
        assert load(one.text, KINDS), name
        assert one.text.startswith(f"# {one.title}\n# {one.sees}\n\n[[rules]]\n")
        assert all(len(line) <= 110 for line in one.text.splitlines())
    assert len(COOKBOOK) == 27
    assert PROGRAMS.keys() ^ IN_TIME.keys() == COOKBOOK.keys()
