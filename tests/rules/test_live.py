"""Rules through a running proxy: what the official clients' fakes do, each as a rule file, with nats-py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest
from click.testing import CliRunner
from nats.errors import TimeoutError as NatsTimeout

from natsproxy.cli.rules import rules as rules_command
from natsproxy.events import Closed, Firing
from tests.kit.servers import NatsServer
from tests.rules.through import settle, through

pytestmark = pytest.mark.server
ONCE: dict[str, Any] = {"allow_reconnect": False, "connect_timeout": 2}


def rule(kind: str, *lines: str, name: str = "r") -> str:
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


async def attempt(url: str) -> list[bytes]:
    """Greet as a client does; return the operations that came back before the end."""
    host, port = url.removeprefix("nats://").split(":")
    heard = b""
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except ConnectionResetError:
        return [b"RST"]
    try:
        heard += await asyncio.wait_for(reader.readline(), 5)
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        heard += await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        heard += b"RST\r\n"
    writer.close()
    return [line.split(b" ")[0] for line in heard.splitlines()]


FIRST = ('per = "proxy"', "first = 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rule("refuse", *FIRST), [b"RST"]),
        (rule("refuse", *FIRST, 'how = "close"'), []),
        (rule("close", 'op = "INFO"', "deliver = true", *FIRST), [b"INFO"]),
        (rule("close", 'op = "CONNECT"', *FIRST), [b"INFO"]),
        (rule("close", 'op = "PING"', 'direction = "c2s"', *FIRST), [b"INFO"]),
        (rule("reset", 'op = "PING"', 'direction = "c2s"', *FIRST), [b"INFO", b"RST"]),
    ],
    ids=["refused", "before INFO", "after INFO", "after CONNECT", "after PING", "reset at PING"],
)
async def test_a_connection_ends_early_and_the_next_is_served(
    nats_server: NatsServer, text: str, expected: list[bytes]
) -> None:
    async def program(url: str) -> None:
        assert await attempt(url) == expected
        nc = await nats.connect(url, **ONCE)
        await settle(nc)
        await nc.close()

    events = await through(nats_server.port, text, program)
    assert [event.rule for event in events if isinstance(event, Firing)] == ["r"]


async def test_an_info_that_is_late(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        nc = await nats.connect(url, **ONCE)
        assert loop.time() - before >= 0.3
        await nc.close()

    await through(nats_server.port, rule("latency", 'op = "INFO"', "first = 1", 'delay = "300ms"'), program)


async def test_the_first_publish_acks_are_swallowed(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        await js.add_stream(name="ACKS", subjects=["acks.>"])
        try:
            for _ in range(2):
                with pytest.raises(NatsTimeout):
                    await js.publish("acks.1", b"", timeout=0.3)
            assert (await js.publish("acks.1", b"", timeout=5)).seq == 3
        finally:
            await js.delete_stream("ACKS")
            await nc.close()

    text = rule("drop", 'role = "publish-ack"', 'subject = "acks.>"', "first = 2")
    events = await through(nats_server.port, text, program)
    firings = [event for event in events if isinstance(event, Firing)]
    assert [(firing.m, firing.direction) for firing in firings] == [(1, "s2c"), (2, "s2c")]
    assert all(firing.ordinal is not None for firing in firings)


async def test_every_idle_heartbeat_is_withheld(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        await js.add_stream(name="BEATS", subjects=["beats.>"])
        try:
            inbox = nc.new_inbox()
            heard = await nc.subscribe(inbox)
            await js.add_consumer("BEATS", deliver_subject=inbox, ack_policy="none", idle_heartbeat=0.1)
            await js.publish("beats.1", b"x")
            assert (await heard.next_msg(5)).subject == "beats.1"
            with pytest.raises(NatsTimeout):
                await heard.next_msg(0.5)
        finally:
            await js.delete_stream("BEATS")
            await nc.close()

    events = await through(nats_server.port, rule("drop", 'role = "heartbeat"'), program)
    assert sum(isinstance(event, Firing) for event in events) >= 2


async def test_a_pull_request_gets_a_409(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        js = nc.jetstream()
        await js.add_stream(name="PULLS", subjects=["pulls.>"])
        try:
            await js.add_consumer("PULLS", durable_name="w", ack_policy="explicit")
            await js.publish("pulls.1", b"x")
            inbox = nc.new_inbox()
            heard = await nc.subscribe(inbox)
            for _ in range(2):
                await nc.publish("$JS.API.CONSUMER.MSG.NEXT.PULLS.w", b"1", reply=inbox)
            first, second = await heard.next_msg(5), await heard.next_msg(5)
            assert (first.headers or {}).get("Status") == "409"
            assert second.data == b"x"
        finally:
            await js.delete_stream("PULLS")
            await nc.close()

    await through(
        nats_server.port, rule("answer", 'role = "pull"', "limit = 1", "status_code = 409"), program
    )


async def test_lame_duck_mode_is_announced(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        quiet = await nc.subscribe("later")
        with pytest.raises(NatsTimeout):
            await quiet.next_msg(0.4)
        await settle(nc)
        await nc.close()

    events = await through(
        nats_server.port, rule("announce", 'between = ["100ms"]', "lame_duck = true"), program
    )
    assert [event.kind for event in events if isinstance(event, Firing)] == ["announce"]


async def test_a_paused_link_goes_on_and_loses_nothing(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        heard = await nc.subscribe("p")
        loop = asyncio.get_running_loop()
        before = loop.time()
        for number in range(100):
            await nc.publish("p", b"%d" % number)
        assert [(await heard.next_msg(5)).data for _ in range(100)] == [b"%d" % n for n in range(100)]
        assert loop.time() - before >= 0.3
        await nc.close()

    text = rule("pause", 'direction = "s2c"', 'op = "MSG"', "after = 49", "limit = 1", 'lasts = "300ms"')
    await through(nats_server.port, text, program)


async def test_swallowed_messages_are_gone_and_the_link_goes_on(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        heard = await nc.subscribe("p")
        await nc.publish("p", b"first")
        await settle(nc)
        await nc.publish("p", b"gone")
        await settle(nc)
        await asyncio.sleep(0.4)
        await nc.publish("p", b"last")
        assert [(await heard.next_msg(5)).data for _ in range(2)] == [b"first", b"last"]
        await nc.close()

    text = rule("swallow", 'direction = "c2s"', 'op = "PUB"', "first = 1", 'lasts = "300ms"')
    await through(nats_server.port, text, program)


async def test_a_recorded_chaos_run_becomes_a_script(nats_server: NatsServer, tmp_path: Path) -> None:
    heard: list[list[bytes]] = []

    async def program(url: str) -> None:
        nc = await nats.connect(url, name="app")
        got, end = await nc.subscribe("chaos"), await nc.subscribe("end")
        for number in range(100):
            await nc.publish("chaos", b"%d" % number)
        await nc.publish("end", b"")
        await end.next_msg(5)
        heard.append([(await got.next_msg(1)).data for _ in range(got.pending_msgs)])
        await nc.close()

    lossy = rule("drop", 'op = "PUB"', 'subject = "chaos"', "probability = 0.2")
    capture = tmp_path / "chaos.ncap"
    await through(nats_server.port, lossy, program, seed=3, record=capture)
    result = CliRunner().invoke(rules_command, ["from-capture", str(capture)])
    assert result.exit_code == 0, result.output
    assert "# 2" in result.output or "# 1" in result.output
    assert 'only = { "c2s app/1" = [' in result.output
    await through(nats_server.port, result.output, program, seed=99)
    assert heard[0] == heard[1]
    assert 60 < len(heard[0]) < 95


async def test_a_rule_that_fails_ends_its_connection_only(nats_server: NatsServer) -> None:
    from natsproxy.rules.chain import RuleChain
    from natsproxy.rules.kinds import KINDS
    from natsproxy.rules.spec import load

    loaded = load(rule("drop", 'op = "PUB"', 'subject = "bad"'), KINDS)

    def broken(frame: Any, hit: Any) -> Any:
        raise RuntimeError("broken")

    loaded[0].action.act = broken  # type: ignore[method-assign]

    async def program(url: str) -> None:
        gone = asyncio.Event()

        async def note() -> None:
            gone.set()

        good, bad = await nats.connect(url), await nats.connect(url, closed_cb=note, **ONCE)
        await bad.publish("bad", b"")
        await asyncio.wait_for(gone.wait(), 5)
        await settle(good)
        await good.close()

    events = await through(nats_server.port, RuleChain(loaded), program)
    causes = [event.cause for event in events if isinstance(event, Closed)]
    assert len(causes) == 2
    assert causes.count("rule-failed") == 1
