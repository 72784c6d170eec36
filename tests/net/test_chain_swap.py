"""Rules that come into force on many connections: one after the other, each whole, while the others go on."""

from __future__ import annotations

import pytest
import trio

from natsproxy.net.chain_swap import AT_ONCE
from natsproxy.net.timeslice import LENGTH, Timeslice
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.subscription_check import LEAST, LiveSubscriptions
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.stage import Stage, receive, stage

DENY = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = ["secret", "s.7"]\n'
FRAME = b"PUB secret 1\r\nx\r\n"
SUBS = 10 * LEAST
DENIED = b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n"


def deny() -> RuleChain:
    return RuleChain(load(DENY, KINDS), seed=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The looks at subscriptions so far, each of which takes a slice for 64 of them."""
    found = [0]
    look = LiveSubscriptions._look

    def counted(check: LiveSubscriptions, sub: object) -> object:
        found[0] += 1
        return look(check, sub)  # type: ignore[arg-type]

    monkeypatch.setattr(LiveSubscriptions, "_look", counted)
    monkeypatch.setattr(Timeslice, "clock", staticmethod(lambda: found[0] * (LENGTH // LEAST + 1)))
    return found


async def subscribed(made: Stage) -> tuple[trio.SocketStream, trio.SocketStream]:
    client, server = await made.connect()
    sent = b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(SUBS))
    await client.send_all(sent)
    assert await receive(server, len(sent)) == sent
    return client, server


async def test_a_few_connections_have_the_rules_at_once() -> None:
    async with stage() as made:
        pairs = [await made.connect() for _ in range(AT_ONCE + 3)]
        chain = deny()
        made.proxy.swap(chain)
        swapped = [relay.session.chain is chain for relay in made.proxy.relays.values()]
        assert swapped == [True] * AT_ONCE + [False] * 3
        await made.proxy.rules_in_force()
        assert all(relay.session.chain is chain for relay in made.proxy.relays.values())
        for client, server in pairs:
            await client.send_all(FRAME)
            assert await receive(server, 6) == b"PING\r\n"
            await server.send_all(b"PONG\r\n")
            assert await receive(client, len(DENIED)) == DENIED
            await client.aclose()
            await server.aclose()


async def test_live_subscriptions_are_looked_at_in_slices(looks: list[int]) -> None:
    """The connection has its old rules until they are done; another one's frame passes between two slices."""
    async with stage() as made:
        many, (client, server) = await subscribed(made), await made.connect()
        looks[0] = 0
        chain = deny()
        made.proxy.swap(chain)
        assert looks[0] == LEAST
        assert made.proxy.relays[1].session.chain is not chain
        assert made.proxy.relays[2].session.chain is chain
        await client.send_all(b"PUB a 1\r\nx\r\n")
        assert await receive(server, 12) == b"PUB a 1\r\nx\r\n"
        assert looks[0] < SUBS
        await made.proxy.rules_in_force()
        assert looks[0] == SUBS
        assert made.proxy.relays[1].session.chain is chain
        assert b"7" not in made.proxy.relays[1].session.subs
        assert await receive(many[1], 6) == b"PING\r\n"
        for stream in (*many, client, server):
            await stream.aclose()


async def test_a_swap_that_begins_meanwhile_takes_over(looks: list[int]) -> None:
    async with stage() as made:
        pair = await subscribed(made)
        made.proxy.swap(deny())
        last = RuleChain(load("rules = []", KINDS))
        made.proxy.swap(last)
        await made.proxy.rules_in_force()
        assert made.proxy.relays[1].session.chain is last
        for stream in pair:
            await stream.aclose()


async def test_a_connection_that_ends_meanwhile_is_left_out(looks: list[int]) -> None:
    async with stage() as made:
        client, server = await subscribed(made)
        made.proxy.swap(deny())
        await client.aclose()
        await server.aclose()
        await made.end_of(1)
        await made.proxy.rules_in_force()
