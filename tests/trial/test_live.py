"""Verdicts on recordings are the firings of a live proxy with the same rules and traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Event, Firing
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.expectations import WOULD_NOT_COME
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.trial.promotion import broken, enforced, shadowed
from natsproxy.trial.rehearsal import Rehearsal
from natsproxy.trial.report import Report
from tests.kit.clients import settle
from tests.kit.servers import NatsServer
from tests.rules.through import through
from tests.testing.zoo import available, run, whole_system

pytestmark = pytest.mark.server
SEED = 5
GENTLE = """
[[rules]]
name = "slow"
kind = "latency"
subject = ["orders.>", "jobs.>", "_INBOX.>", "$JS.ACK.>"]
delay = "1ms"
every = 3
[[rules]]
name = "by chance"
kind = "latency"
op = ["PUB", "HPUB", "MSG", "HMSG"]
delay = { distribution = "uniform", min = "1us", max = "2ms" }
probability = 0.2
[[rules]]
name = "acks"
kind = "duplicate"
subject = "$JS.ACK.>"
limit = 1
[[rules]]
name = "narrow link"
kind = "bandwidth"
rate = "10MiB"
[[rules]]
name = "unused"
kind = "deny"
subject = "secret.>"
"""
"""Rules under which the programs of the zoo end as without them."""
SHADOW = """
[[rules]]
name = "all"
kind = "deny"
mode = "shadow"
subject = ">"
[[rules]]
name = "some"
kind = "permissions"
mode = "shadow"
publish = ["_INBOX.>", "$JS.ACK.>"]
subscribe = { allow = [">"], deny = ["orders.>", "jobs.>"] }
allow_responses = { max = 1 }
"""
"""Rules in shadow, under which the programs do all that they would do without them."""
Fired = tuple[str, str, int, str, int | None, str]
"""Rule, action, connection, direction, ordinal and subject."""


@asynccontextmanager
async def recorded(capture: Path, upstream: Address, rules: str, events: list[Event]) -> AsyncIterator[str]:
    """Run a recording proxy with rules; yields its URL."""
    settings = ProxySettings(
        listen=(Listener(),), upstream=(Server(upstream),), record=RecordSettings(capture), seed=SEED
    )
    proxy = Proxy(settings, RuleChain(load(rules, KINDS), seed=SEED))
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(proxy.serve)
        yield f"nats://{addresses[0]}"
        with trio.move_on_after(5):
            while proxy.relays:  # noqa: ASYNC110 (connections tell nobody that they left)
                await trio.sleep(0.01)
        await proxy.drain(5)


def fired(events: list[Event]) -> Counter[Fired]:
    """Return the firings of a live proxy."""
    return Counter(
        (one.rule, one.action, one.conn, one.direction, one.ordinal, one.subject)
        for event in events
        if isinstance(event, Firing)
        for one in event.each()
    )


def rehearsed(rules: str, capture: Path) -> Counter[Fired]:
    """Return the verdicts on its recording."""
    return Counter(
        (ruling.rule, ruling.verdict, int(one.connection), one.direction.label, one.ordinal, subject)
        for one in Rehearsal(load(rules, KINDS), seed=SEED).run(capture)
        for subject in [one.subject[:256].decode("utf-8", "replace")]
        for ruling in one.rulings
    )


@pytest.mark.parametrize(
    ("rules", "acting"),
    [
        (GENTLE, {"slow", "by chance", "acks", "narrow link"}),
        pytest.param(SHADOW, {"all", "some"}, marks=pytest.mark.long),
    ],
    ids=["gentle", "shadow"],
)
def test_the_verdicts_on_the_zoo_are_its_firings(tmp_path: Path, rules: str, acting: set[str]) -> None:
    """Of rules that were in force meanwhile: each frame that arrived gets the verdict that it had."""
    events: dict[str, list[Event]] = {name: [] for name in available()}

    async def main() -> None:
        async with whole_system() as server, AsyncExitStack() as stack:
            urls = {
                name: await stack.enter_async_context(
                    recorded(tmp_path / f"{name}.ncap", server, rules, events[name])
                )
                for name in events
            }
            found = await run(urls)
        assert [error for _, error in found.values() if error] == []

    trio.run(main)
    total: Counter[str] = Counter()
    for name, happened in events.items():
        live = fired(happened)
        total.update(rule for rule, *_ in live.elements())
        assert rehearsed(rules, tmp_path / f"{name}.ncap") == live, name
    assert set(total) == acting


DENY = """
[[rules]]
name = "publish"
kind = "permissions"
publish = { deny = ["secret.>", "$SYS.>"] }
subscribe = { allow = ["news.>", "_INBOX.>", "mixed.*"], deny = "mixed.b" }
[[rules]]
name = "third"
kind = "drop"
subject = "news.a"
direction = "c2s"
every = 3
"""


async def program(url: str) -> None:
    """Publish and subscribe, whatever is refused: all that it sends is the same with and without rules."""

    async def ignore(error: Exception) -> None:
        return None

    nc = await nats.connect(url, name="app", error_cb=ignore, inbox_prefix="_INBOX.fixed")
    for subject in ("news.>", "secret.x", "mixed.*", "other"):
        await nc.subscribe(subject)
    for _ in range(7):
        for subject in ("news.a", "secret.x", "mixed.a", "mixed.b", "other"):
            await nc.publish(subject, b"x")
    await settle(nc)
    await nc.close()


async def test_a_recording_without_the_rules_tells_their_firings(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    capture = tmp_path / "without.ncap"
    await through(nats_server.port, "rules = []", program, seed=SEED, record=capture)
    live = fired(await through(nats_server.port, DENY, program, seed=SEED))
    found = rehearsed(DENY, capture)

    def sent(verdicts: Counter[Fired]) -> Counter[Fired]:
        return Counter({one: count for one, count in verdicts.items() if one[3] == "c2s"})

    def came(verdicts: Counter[Fired], *words: str) -> Counter[tuple[str, str]]:
        return Counter(
            {
                (rule, subject): count
                for (rule, word, _, way, _, subject), count in verdicts.items()
                if way == "s2c" and word in words
                for count in [
                    sum(
                        n
                        for o, n in verdicts.items()
                        if (o[0], o[1], o[3], o[5]) == (rule, word, way, subject)
                    )
                ]
            }
        )

    assert sent(found) == sent(live)
    assert sent(live)
    assert came(found, "deny") == came(live, "deny") == {("publish", "mixed.b"): 7}
    assert came(found, WOULD_NOT_COME) == {("publish", "secret.x"): 7, ("publish", "other"): 7}


async def test_shadow_tells_what_the_same_rules_would_break(nats_server: NatsServer, tmp_path: Path) -> None:
    """The time of shadow, its recording promoted, and the rules in force agree on what is denied."""
    shadow = DENY.replace('kind = "permissions"', 'kind = "permissions"\nmode = "shadow"')
    capture = tmp_path / "shadow.ncap"
    told = fired(await through(nats_server.port, shadow, program, seed=SEED, record=capture))
    live = fired(await through(nats_server.port, DENY, program, seed=SEED))
    of_map = Counter({(*one[:1], *one[3:]): n for one, n in told.items() if one[1] == "would deny"})
    c2s = {
        (rule, *rest): n for (rule, word, _, *rest), n in live.items() if word == "deny" and rest[0] == "c2s"
    }
    assert {one: n for one, n in of_map.items() if one[1] == "c2s"} == c2s
    rules = enforced(load(shadow, KINDS))
    report = Report(rules, ())
    for one in Rehearsal(rules, seed=SEED).run(capture):
        report.add(one)
    denied = Counter[str]()
    for key, row in broken(report, shadowed(load(shadow, KINDS))):
        if key.verdict == "deny":
            denied[key.what] += row.count
    assert sum(denied.values()) == sum(of_map.values())
    assert denied == {"PUB secret.x": 7, "SUB secret.x": 1, "SUB other": 1, "MSG mixed.b": 7}
