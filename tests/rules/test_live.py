"""Rules through a running proxy, with nats-py: links that stand still, rules that fail."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import nats
import pytest

from natsproxy.capture.format import records
from natsproxy.capture.read.reader import open_capture
from natsproxy.events import Closed
from natsproxy.log import LogFile, log_event, logger
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.rules.through import through

pytestmark = pytest.mark.server
ONCE: dict[str, Any] = {"allow_reconnect": False, "connect_timeout": 2}


def rule(kind: str, *lines: str, name: str = "r") -> str:
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


async def test_a_paused_link_goes_on_and_loses_nothing(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        subscription = await nc.subscribe("p")
        loop = asyncio.get_running_loop()
        before = loop.time()
        for number in range(100):
            await nc.publish("p", b"%d" % number)
        assert [(await subscription.next_msg(5)).data for _ in range(100)] == [b"%d" % n for n in range(100)]
        assert loop.time() - before >= 0.3
        await nc.close()

    text = rule("pause", 'direction = "s2c"', 'op = "MSG"', "after = 49", "limit = 1", 'lasts = "300ms"')
    await through(nats_server.port, text, program)


async def test_swallowed_messages_are_gone_and_the_link_goes_on(nats_server: NatsServer) -> None:
    async def program(url: str) -> None:
        nc = await nats.connect(url)
        subscription = await nc.subscribe("p")
        await nc.publish("p", b"first")
        await settle(nc)
        await nc.publish("p", b"gone")
        await settle(nc)
        await asyncio.sleep(0.4)
        await nc.publish("p", b"last")
        assert [(await subscription.next_msg(5)).data for _ in range(2)] == [b"first", b"last"]
        await nc.close()

    text = rule("swallow", 'direction = "c2s"', 'op = "PUB"', "after = 1", "limit = 1", 'lasts = "300ms"')
    await through(nats_server.port, text, program)


@pytest.mark.parametrize(("kind", "method"), [("duplicate", "act"), ("drop", "static_decision")])
async def test_a_rule_that_fails_ends_its_connection_only(
    nats_server: NatsServer, tmp_path: Path, kind: str, method: str
) -> None:
    loaded = load(rule(kind, 'op = "PUB"', 'subject = "bad"'), KINDS)

    def broken(*about: Any) -> Any:
        raise RuntimeError("out of ideas")

    setattr(loaded[0].action, method, broken)

    async def program(url: str) -> None:
        gone = asyncio.Event()

        async def note() -> None:
            gone.set()

        good, bad = await nats.connect(url), await nats.connect(url, closed_cb=note, **ONCE)
        try:
            await bad.publish("bad", b"")
            await asyncio.wait_for(gone.wait(), 5)
            echo = await good.subscribe("echo")
            await good.publish("echo", b"x")
            assert (await echo.next_msg(5)).data == b"x"
        finally:
            await good.close()

    capture, lines = tmp_path / "c.ncap", tmp_path / "log"
    events = await through(nats_server.port, RuleChain(loaded), program, record=capture)
    closed = {event.cause: event.detail for event in events if isinstance(event, Closed)}
    detail = closed["rule-failed"]  # without the error's text, which may quote the frame
    assert re.fullmatch(r"a rule failed on PUB: RuntimeError at test_live\.py:\d+", detail)
    assert len(closed) == 2  # the other one ended in its own way
    ends = [item for _, item in open_capture(capture).items() if isinstance(item, records.CloseRecord)]
    assert ("rule-failed", detail) in [(end.cause, end.info["detail"]) for end in ends]
    with LogFile(lines) as file:
        log = logger(file, "json")
        for event in events:
            log_event(log, event)
    logged = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["event"] for line in logged if line["level"] == "error"] == [detail]
