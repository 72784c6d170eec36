"""Logins through a proxy at real servers: those of clients, and the proxy's own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import nats
import pytest
import trio
import trio.testing

from natsproxy import close_reasons
from natsproxy.addresses import Address
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Greeted
from natsproxy.log import LogFile, log_event, logger
from natsproxy.net.client_users import ClientUsers
from natsproxy.net.proxy import Proxy
from natsproxy.net.relay import Relay
from natsproxy.protocol.credentials import Credentials, KeyPair, read_credentials
from natsproxy.session.values import Identity
from natsproxy.units import SECOND
from natsproxy.wire.ops import C2S, Direction, Op
from natsproxy.wire.scanner import COMPILED
from tests.kit.accounts import Operator, seed
from tests.kit.node import run_node
from tests.kit.servers import NatsServer, executable

PROGRAM = Path(__file__).parent / "programs" / "client.js"
SEED = seed()
PUBLIC = KeyPair(SEED).public
OPERATOR = Operator()
HASHES = {name: bcrypt.hashpw(f"{name}-pw".encode(), bcrypt.gensalt(4)) for name in ("ann", "bob")}
DENIED = b"-ERR 'Authorization Violation'\r\n"
SECRETS = [b"own-secret", b"ann-pw", b"bob-pw", SEED.encode()]

pytestmark = pytest.mark.server

Ways = dict[str, tuple[str, str, Callable[[Path], dict[str, Any]]]]


def _file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


WAYS: Ways = {
    "user": (
        'authorization { user: "u", password: "own-secret" }',
        'user = "u"\npassword = "own-secret"',
        lambda _: {"user": "u", "password": "own-secret"},
    ),
    "token": (
        'authorization { token: "own-secret" }',
        'token = "own-secret"',
        lambda _: {"token": "own-secret"},
    ),
    "nkey": (
        f"authorization {{ users: [ {{ nkey: {PUBLIC} }} ] }}",
        SEED,
        lambda folder: {"nkeys_seed": _file(folder / "seed", SEED)},
    ),
    "jwt": (
        OPERATOR.config,
        (CREDS := OPERATOR.creds("svc")),
        lambda folder: {"user_credentials": _file(folder / "user.creds", CREDS)},
    ),
}
"""A server's configuration, the file of credentials, and the options of nats-py, by kind of login."""


@pytest.fixture(params=["native", "python"])
def plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose the plane that moves the bytes."""
    monkeypatch.setenv("NATSPROXY_PLANE", request.param)
    return str(request.param)


def settings_for(server: NatsServer, identity: Identity | None = None, **more: Any) -> ProxySettings:
    settings = ProxySettings(
        listen=(Listener(),),
        upstream=(Server(Address("127.0.0.1", server.port)),),
        connect_timeout=30 * SECOND,
        identity=identity,
        client_users=HASHES,
    )
    return replace(settings, **more)


@asynccontextmanager
async def proxied(settings: ProxySettings) -> AsyncIterator[tuple[Proxy, Address, list[Event]]]:
    """Run a proxy; at the end it is drained, so that all events are there."""
    proxy = Proxy(settings)
    events: list[Event] = []
    proxy.subscribe(events.append)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        yield proxy, address, events
        await proxy.drain(5)


async def echo(url: str, **options: Any) -> bytes:
    """Return a message that a nats-py client sent to itself."""

    async def main() -> bytes:
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=30, **options)
        subscription = await client.subscribe("e")
        await client.publish("e", b"hello")
        message = await subscription.next_msg(timeout=30)
        await client.close()
        return bytes(message.data)

    return await trio.to_thread.run_sync(lambda: asyncio.run(main()))


async def answers(address: Address, sent: bytes, until: bytes = b"") -> bytes:
    """Send bytes after the greeting; return what comes behind it, to the end or to the given bytes."""
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        received = b""
        with trio.fail_after(30):
            while b"\r\n" not in received:
                received += await stream.receive_some(4096)
            await stream.send_all(sent)
            rest = received.partition(b"\r\n")[2]
            while not until or until not in rest:
                more = await stream.receive_some(4096)
                if not more:
                    break
                rest += more
            return rest


# -- clients that log in themselves


@pytest.mark.parametrize("way", WAYS)
async def test_the_credentials_of_clients_pass(way: str, plane: str, tmp_path: Path) -> None:
    """Nothing of INFO or CONNECT that logs a client in is changed."""
    config, _, options = WAYS[way]
    with NatsServer(config) as server:
        async with proxied(settings_for(server)) as (_, address, _):
            assert await echo(f"nats://{address}", **options(tmp_path)) == b"hello"
            assert await answers(address, b"CONNECT {}\r\nPING\r\n") == DENIED


# -- the proxy's own login


@pytest.mark.parametrize("way", WAYS)
async def test_the_proxy_logs_in_with_its_own(way: str, plane: str, tmp_path: Path) -> None:
    """A client logs in at the proxy, whose credentials are nowhere in the capture or the log."""
    config, text, _ = WAYS[way]
    identity = Identity(read_credentials(text), "users")
    capture, lines = tmp_path / "x.ncap", tmp_path / "log"
    with NatsServer(config) as server, LogFile(lines) as file:
        log = partial(log_event, logger(file, "json", "debug"))
        settings = settings_for(server, identity, record=RecordSettings(capture))
        async with proxied(settings) as (proxy, address, events):
            proxy.subscribe(log)
            assert await echo(f"nats://{address}", user="ann", password="ann-pw", name="app") == b"hello"
        (greeted,) = [event for event in events if isinstance(event, Greeted)]
        assert (greeted.user, greeted.name) == ("ann", "app")
    jwt = [read_credentials(text).jwt.encode()] if way == "jwt" else []
    for secret in [*SECRETS, *jwt, *(line.encode() for line in text.splitlines() if line.startswith("SU"))]:
        assert secret not in capture.read_bytes()
        assert secret not in lines.read_bytes()
    came, went = (
        one for one in read_frames(open_capture(capture)) if one.frame and one.frame.op == Op.CONNECT
    )
    assert (came.out_ordinal, went.in_ordinal) == (None, None)
    assert b'"ann"' in came.frame.args if came.frame else False
    assert b'"ann"' not in went.frame.args if went.frame else False


@pytest.mark.parametrize(
    "way", ["nkey", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != "nkey")]
)
async def test_a_client_in_javascript_logs_in_at_the_proxy(way: str) -> None:
    """It signs no nonce, and gives the password that INFO asks for."""
    config, text, _ = WAYS[way]
    with NatsServer(config) as server:
        async with proxied(settings_for(server, Identity(read_credentials(text), "users"))) as (
            _,
            address,
            _,
        ):
            arguments = (PROGRAM, f"nats://{address}", json.dumps({"user": "ann", "pass": "ann-pw"}))
            output = await trio.to_thread.run_sync(run_node, *arguments)
    assert output == "hello: 11 headers: yes\n"


async def test_a_wrong_password_gets_the_servers_own_answer(plane: str, tmp_path: Path) -> None:
    """No user, a wrong password and no CONNECT look the same to a client; the log tells them apart."""
    identity = Identity(read_credentials(WAYS["user"][1]), "users")
    with NatsServer(WAYS["user"][0]) as server:
        async with proxied(settings_for(server, identity)) as (_, address, events):
            for args in (
                b'{"user":"ann","pass":"ann-pv"}',
                b'{"user":"eve","pass":"ann-pw"}',
                b'{"auth_token":"ann-pw"}',
                b'{"user":"u","pass":"own-secret"}',
                b'{"user":"ann","pass":"' + b"x" * 100 + b'"}',
            ):
                found = await answers(address, b"CONNECT " + args + b"\r\nPING\r\nPUB a 1\r\nx\r\n")
                assert found == DENIED
            assert await answers(address, b"PUB a 1\r\nx\r\n") == DENIED
        ends = sorted((event for event in events if isinstance(event, Closed)), key=lambda end: end.conn)
        assert {end.cause for end in ends} == {close_reasons.UNAUTHORIZED}
        assert [end.detail for end in ends] == [
            "a wrong password for the user 'ann'",
            "there is no user 'eve'",
            "the client named no user",
            "there is no user 'u'",
            "a wrong password for the user 'ann'",
            "the client sent something else before its CONNECT",
        ]
        assert {end.who.user for end in ends} == {""}  # a user is one that was checked


async def test_a_second_connect_logs_in_anew(plane: str) -> None:
    """The server takes the proxy's signature of its nonce twice; a wrong password ends the connection."""
    identity = Identity(Credentials(key=KeyPair(SEED)), "users")
    with NatsServer(WAYS["nkey"][0]) as server:
        async with proxied(settings_for(server, identity)) as (_, address, events):
            first = b'CONNECT {"verbose":false,"user":"ann","pass":"ann-pw"}\r\nPING\r\n'
            bob = b'CONNECT {"User":"bob","pass":"bob-pw"}\r\nPING\r\nSUB x 1\r\nPUB x 2\r\nhi\r\n'
            found = await answers(address, first + bob, b"hi\r\n")
            assert found.count(b"PONG\r\n") == 2
            assert found.endswith(b"MSG x 1 2\r\nhi\r\n")
            found = await answers(address, first + b'CONNECT {"user":"bob"}\r\nPUB x 2\r\nhi\r\n')
            assert found.endswith(b"PONG\r\n" + DENIED)
        assert [event.user for event in events if isinstance(event, Greeted)] == ["ann", "bob", "ann"]


async def test_a_refusal_of_the_proxys_own_login_says_so(plane: str) -> None:
    """The log tells it from a client's wrong password."""
    with NatsServer(WAYS["user"][0]) as server:
        async with proxied(settings_for(server, Identity(Credentials(token="old")))) as (_, address, events):
            found = await answers(address, b"CONNECT {}\r\nPING\r\n")
            assert found == DENIED
        (end,) = [event for event in events if isinstance(event, Closed)]
        assert end.cause == close_reasons.SERVER_CLOSED
        assert end.detail == "the server said 'Authorization Violation' to natsproxy's own login"


async def test_a_selection_goes_by_the_client(plane: str, tmp_path: Path) -> None:
    """Not by the user that the proxy is to the server."""
    identity = Identity(read_credentials(WAYS["user"][1]), "users")
    record = RecordSettings(tmp_path / "x.ncap", selection=Selection(("user:ann",)))
    with NatsServer(WAYS["user"][0]) as server:
        async with proxied(settings_for(server, identity, record=record)) as (_, address, _):
            for user in ("ann", "bob"):
                await echo(f"nats://{address}", user=user, password=f"{user}-pw")
    found = [one for one in read_frames(open_capture(tmp_path / "x.ncap")) if one.frame]
    assert {one.conn.number for one in found if one.frame and one.frame.op == Op.PUB} == {1}


async def test_many_logins_at_once_leave_the_loop_free(plane: str) -> None:
    """All get in while the checks wait for their turn; one that leaves meanwhile takes nobody's place."""
    slow = {"ann": bcrypt.hashpw(b"ann-pw", bcrypt.gensalt(8))}
    identity = Identity(read_credentials(WAYS["user"][1]), "users")
    login = b'CONNECT {"verbose":false,"user":"ann","pass":"ann-pw"}\r\nPING\r\n'
    with NatsServer('authorization { user: "u", password: "own-secret", timeout: 60 }') as server:
        async with proxied(settings_for(server, identity, client_users=slow)) as (_, address, _):
            for _ in range(5):
                stream = await trio.open_tcp_stream(address.host, address.port)
                await stream.receive_some(4096)
                await stream.send_all(login)
                await stream.aclose()
            found: list[bytes] = []

            async def one() -> None:
                found.append(await answers(address, login, b"PONG\r\n"))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(one)
            assert [each[:6] for each in found] == [b"PONG\r\n"] * 20


@pytest.mark.skipif(not COMPILED, reason="there is one plane only")
async def test_after_its_login_a_client_is_on_the_native_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """One frame is rewritten; publishes go past the session like those of everybody."""
    monkeypatch.delenv("NATSPROXY_PLANE", raising=False)
    seen: list[bytes] = []
    received = Relay.received

    def counting(relay: Relay, direction: Direction, data: bytes) -> bool:
        if direction == C2S:
            seen.append(data)
        return received(relay, direction, data)

    monkeypatch.setattr(Relay, "received", counting)
    identity = Identity(read_credentials(WAYS["user"][1]), "users", KeyPair(SEED))
    with NatsServer(WAYS["user"][0]) as server:
        async with (
            proxied(settings_for(server, identity)) as (_, address, _),
            await trio.open_tcp_stream(address.host, address.port) as stream,
        ):
            for sent in (b'CONNECT {"user":"ann","pass":"ann-pw","verbose":false}\r\nPING\r\n', b"PING\r\n"):
                await stream.send_all(sent)
                while b"PONG" not in await stream.receive_some(4096):
                    pass
                seen.clear()
                for _ in range(100):
                    await stream.send_all(b"PUB a 2\r\nhi\r\n" * 10)
            await stream.send_all(b"PING\r\n")
            while b"PONG" not in await stream.receive_some(4096):
                pass
            assert b"PUB" not in b"".join(seen)


async def test_an_unknown_user_costs_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a hash of the table, the same one each time, and never with success."""
    users = ClientUsers(HASHES)
    looked: list[bytes] = []

    def match(password: bytes, expected: bytes) -> bool:
        looked.append(expected)
        return True

    monkeypatch.setattr(users, "_matches", match)
    for _ in range(3):
        assert await users.refusal("eve", "x", "h") == "there is no user 'eve'"
    assert len(looked) == 3
    assert len(set(looked)) == 1
    assert looked[0] in HASHES.values()


async def test_a_flood_of_logins_takes_a_part_of_the_processors_and_of_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks run beside the traffic, and another address has its turn before the rest of the flood."""
    users, go, other = ClientUsers(HASHES), threading.Event(), threading.Event()
    begun: list[bytes] = []

    def match(password: bytes, _: bytes) -> bool:
        begun.append(password)
        if password == b"other":
            other.set()
        # Nobody of the flood ends a second check before the other one has begun.
        return go.wait(30) and (len(begun) == 2 or other.wait(30))

    monkeypatch.setattr(users, "_matches", match)
    monkeypatch.setattr(users, "_limiter", trio.CapacityLimiter(2))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for host in ("flood", "more"):
                for _ in range(50):
                    nursery.start_soon(users.refusal, "ann", host, host)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(users.refusal, "ann", "other", "other")
            await trio.testing.wait_all_tasks_blocked()
            while len(begun) < 2:  # noqa: ASYNC110 (threads tell nobody that they began)
                await trio.sleep(0.001)
            assert sorted(begun) == [b"flood", b"more"]
            go.set()
    assert begun.index(b"other") in (2, 3)  # threads begin in any order
    assert not users._turns


async def test_a_seed_in_the_place_of_a_user_is_not_said() -> None:
    """The reason goes to the log."""
    refusal = await ClientUsers(HASHES).refusal(SEED, "x", "h")
    assert refusal == "there is no user '[withheld: seed]'"


# -- trusted proxies


TRUSTED = seed("server")
PROXIES = f"proxies {{ trusted: [ {{ key: {KeyPair(TRUSTED).public} }} ] }}\n"
NEEDS = 'authorization { users: [ { user: "u", password: "own-secret", proxy_required: true } ] }'


@pytest.mark.parametrize("version", ["2.15", pytest.param("2.12", marks=pytest.mark.long)])
async def test_users_that_need_a_proxy_come_through_a_trusted_one(version: str, plane: str) -> None:
    """The server knows the proxy by its key; another key, and none, are refused."""
    login = b'CONNECT {"user":"u","pass":"own-secret","verbose":false}\r\nPING\r\n'
    with NatsServer(PROXIES + NEEDS, executable=executable(version)) as server:
        for key, trusted in ((TRUSTED, True), (seed("server"), False), (None, False)):
            identity = Identity(key=KeyPair(key)) if key else None
            async with proxied(settings_for(server, identity)) as (_, address, _):
                found = await answers(address, login, b"\r\n")
                assert found.startswith(b"PONG\r\n" if trusted else DENIED)
        assert await answers(Address("127.0.0.1", server.port), login) == DENIED


@pytest.mark.parametrize("way", ["nkey", "jwt"])
async def test_a_client_and_its_proxy_sign_the_same_nonce(way: str, plane: str, tmp_path: Path) -> None:
    """Each with its own key."""
    config, _, options = WAYS[way]
    with NatsServer(PROXIES + config) as server:
        async with proxied(settings_for(server, Identity(key=KeyPair(TRUSTED)))) as (_, address, _):
            assert await echo(f"nats://{address}", **options(tmp_path)) == b"hello"


async def test_a_jwt_that_needs_a_proxy(plane: str, tmp_path: Path) -> None:
    """The proxy's own user may need one as well."""
    creds = OPERATOR.creds("needs", proxy_required=True)
    own = read_credentials(creds)
    path = _file(tmp_path / "c", creds)
    with NatsServer(PROXIES + OPERATOR.config) as server:
        async with proxied(settings_for(server, Identity(key=KeyPair(TRUSTED)))) as (_, address, _):
            assert await echo(f"nats://{address}", user_credentials=path) == b"hello"
        async with proxied(settings_for(server, Identity(own, key=KeyPair(TRUSTED)))) as (_, address, _):
            assert await echo(f"nats://{address}") == b"hello"
        async with proxied(settings_for(server, Identity(own))) as (_, address, _):
            assert await answers(address, b"CONNECT {}\r\n") == DENIED


async def test_the_server_shows_who_is_behind_the_proxy() -> None:
    """Its own account of the connection names our key."""
    config = PROXIES + "http: 127.0.0.1:-1\n" + NEEDS
    with NatsServer(config) as server:
        port = next(line for line in server.log().splitlines() if "http monitor" in line).rpartition(":")[2]
        async with proxied(settings_for(server, Identity(key=KeyPair(TRUSTED)))) as (_, address, _):
            stream = await trio.open_tcp_stream(address.host, address.port)
            login = b'CONNECT {"user":"u","pass":"own-secret","verbose":false}\r\nPING\r\n'
            await stream.send_all(login)
            received = b""
            while b"PONG" not in received:
                received += await stream.receive_some(4096)
            async with await trio.open_tcp_stream("127.0.0.1", int(port)) as monitor:
                await monitor.send_all(b"GET /connz HTTP/1.0\r\n\r\n")
                body = b"".join([piece async for piece in monitor])
            (shown,) = json.loads(body.partition(b"\r\n\r\n")[2])["connections"]
            assert shown["proxy"]["key"] == KeyPair(TRUSTED).public
            await stream.aclose()
