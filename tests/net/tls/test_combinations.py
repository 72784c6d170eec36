"""Every kind of leg with every way to log in: clients and servers notice nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
import trio

from natsproxy.config.tls import HandshakeFirst
from natsproxy.protocol.credentials import KeyPair
from tests.kit.accounts import Operator, seed
from tests.kit.authority import Authority
from tests.kit.node import run_node
from tests.kit.servers import NatsServer
from tests.net.tls.legs import LEGS, between, in_asyncio, options, server_config

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float'"),  # nats-py's own call
]
SEED = seed()
OPERATOR = Operator()
PROGRAM = Path(__file__).parents[1] / "programs" / "client.js"


def by_nkey(folder: Path) -> dict[str, Any]:
    """Return the options of a client with an nkey."""
    (folder / "seed").write_text(SEED)
    return {"nkeys_seed": str(folder / "seed")}


def by_jwt(folder: Path) -> dict[str, Any]:
    """Return the options of a client with a JWT."""
    (folder / "user.creds").write_text(OPERATOR.creds("ann"))
    return {"user_credentials": str(folder / "user.creds")}


LOGINS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "user": ('authorization { user: "u", password: "p" }', lambda _: {"user": "u", "password": "p"}),
    "nkey": (f'authorization {{ users: [ {{ nkey: "{KeyPair(SEED).public}" }} ] }}', by_nkey),
    "jwt": (OPERATOR.config, by_jwt),
    "certificate": ('authorization { users: [ { user: "alice@example.com" } ] }', lambda _: {}),
}
REPRESENTATIVES = {
    ("plain", "after INFO", "certificate"),
    ("after INFO", "plain", "user"),
    ("after INFO", "after INFO", "jwt"),
    ("before INFO", "before INFO", "nkey"),
}


IN_JAVASCRIPT = {("after INFO", "plain", "nkey"), ("after INFO", "after INFO", "certificate")}


def combinations(representatives: set[tuple[str, str, str]]) -> list[Any]:
    """Return all that makes sense; all but the representatives take long together."""
    found = []
    for client, server, login in itertools.product(LEGS, LEGS, LOGINS):
        if login != "certificate" or server != "plain":
            short = (client, server, login) in representatives
            found.append(pytest.param(client, server, login, marks=[] if short else pytest.mark.long))
    return found


@pytest.mark.parametrize(("client", "server", "login"), combinations(REPRESENTATIVES))
async def test_nats_py(authority: Authority, tmp_path: Path, client: str, server: str, login: str) -> None:
    """Large and small messages, both ways, with the user that the server knows."""
    config, credentials = LOGINS[login]
    tls = server_config(authority, server, "verify_and_map: true" if login == "certificate" else "")

    async def program() -> None:
        more = {**credentials(tmp_path), **options(authority, client)}
        connection = await nats.connect(f"nats://{one.address}", allow_reconnect=False, **more)
        subscription = await connection.subscribe("a")
        for size in (0, 100, 70_000, 1_000_000):
            await connection.publish("a", b"x" * size)
            assert len((await subscription.next_msg(20)).data) == size
        await connection.drain()

    with NatsServer(f"{tls}\n{config}\n") as nats_server:
        # Our certificate: the server maps it to its user.
        ours = {"cert": authority.client("alice") if login == "certificate" else None}
        async with between(authority, client, nats_server, server, upstream_tls=ours) as one:
            await in_asyncio(program)
            assert (await one.closed()).cause == "client-closed"


JAVASCRIPT: dict[str, dict[str, str]] = {
    "user": {"user": "u", "pass": "p"},
    "nkey": {"nkey": SEED},
    "jwt": {"creds": OPERATOR.creds("jane")},
    "certificate": {},
}


@pytest.mark.parametrize(("client", "server", "login"), combinations(IN_JAVASCRIPT))
async def test_nats_js(authority: Authority, client: str, server: str, login: str) -> None:
    """It would begin TLS on any leg that offers it: INFO must say what the client leg has."""
    config, _ = LOGINS[login]
    tls = server_config(authority, server, "verify_and_map: true" if login == "certificate" else "")
    ours = {"cert": authority.client("alice") if login == "certificate" else None}
    more: dict[str, Any] = dict(JAVASCRIPT[login])
    if client != "plain":
        more["tls"] = {"caFile": str(authority.file), "handshakeFirst": client == "before INFO"}
    with NatsServer(f"{tls}\n{config}\n") as nats_server:
        async with between(authority, client, nats_server, server, upstream_tls=ours) as one:
            arguments = (f"nats://{one.address}", json.dumps(more))
            output = await trio.to_thread.run_sync(run_node, PROGRAM, *arguments)
    assert output == "hello: 11 headers: yes\n"


async def test_a_server_that_only_offers_tls(authority: Authority) -> None:
    """A nats:// upstream stays plain then, and the client leg offers what it has: nothing."""
    config = authority.server_config() + "allow_non_tls: true\n"
    with NatsServer(config) as nats_server:
        async with between(authority, "plain", nats_server, "plain") as one:
            output = await trio.to_thread.run_sync(run_node, PROGRAM, f"nats://{one.address}")
    assert output == "hello: 11 headers: yes\n"


async def test_a_plain_upstream_that_requires_tls_gets_it_and_plain_clients_a_warning(
    authority: Authority,
) -> None:
    """As clients do; the operator learns once that the other leg has none."""
    with NatsServer(authority.server_config()) as nats_server:
        async with between(authority, "plain", nats_server, "plain") as one:
            for _ in range(2):

                async def program() -> None:
                    connection = await nats.connect(f"nats://{one.address}", allow_reconnect=False)
                    await connection.close()

                await in_asyncio(program)
            assert len([text for text in one.warnings if "clients connect without TLS" in text]) == 1


@pytest.mark.parametrize("tls_first", [True, False])
async def test_the_fallback_delay(authority: Authority, tls_first: bool) -> None:
    """Clients that speak first get TLS before INFO; the others get INFO, after a while."""

    async def program() -> None:
        more = options(authority, "before INFO" if tls_first else "after INFO")
        connection = await nats.connect(f"nats://{one.address}", allow_reconnect=False, **more)
        await connection.close()

    with NatsServer() as nats_server:
        first = {"handshake_first": HandshakeFirst(100_000_000)}
        async with between(authority, "after INFO", nats_server, "plain", tls=first) as one:
            await in_asyncio(program)
            assert (await one.closed()).cause == "client-closed"
