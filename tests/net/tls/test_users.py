"""Certificates that stand for users: as at a server with `verify_and_map`."""

from __future__ import annotations

import itertools
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import nats
import pytest
import trio
import trustme
from cryptography import x509

from natsproxy.config.settings import ProxySettings
from natsproxy.events import Greeted
from natsproxy.net.tls_leg import certificate_of
from natsproxy.protocol.credentials import Credentials, read_credentials
from natsproxy.session.values import Identity
from tests.kit.accounts import Operator
from tests.kit.authority import Authority
from tests.kit.node import run_node
from tests.kit.servers import NatsServer
from tests.net.test_websocket import PROGRAM
from tests.net.tls.legs import (
    LEGS,
    Running,
    between,
    in_asyncio,
    options,
    running,
    server_config,
    settings,
)
from tests.net.tls.test_failures import converse
from tests.net.tls.test_optional import plain

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float'"),  # nats-py's own call
]
OWN = Identity(Credentials("proxy", "own-secret"), "certificate")
BEHIND = 'authorization { user: "proxy", password: "own-secret" }\n'
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'  # a server prefers a password to a certificate
DENIED = b"-ERR 'Authorization Violation'\r\n"


def subject_of(path: Path) -> str:
    """Return the subject of a certificate, as another library writes it."""
    raw = path.read_bytes()
    return x509.load_pem_x509_certificate(raw[raw.index(b"-----BEGIN CERT") :]).subject.rfc4514_string()


def with_users(
    authority: Authority, port: int, *users: str, listen: str = "after INFO", server: str = "plain"
) -> ProxySettings:
    """Return the settings of a proxy that knows these users by their certificates.

    listen, server: the kinds of its legs.
    """
    made = settings(authority, listen, server, port)
    return replace(
        made,
        tls=replace(made.tls, ca=authority.file),
        identity=replace(OWN, users=frozenset(users)),
    )


@pytest.mark.parametrize("listen", ["after INFO", "before INFO"])
@pytest.mark.parametrize("name", ["e-mail", "DNS", "subject", "another"])
async def test_the_names_of_a_certificate(authority: Authority, name: str, listen: str) -> None:
    """The user that the real server takes a certificate for is the one of log and rules."""
    path = authority.client("ann", "ann.example.org")
    user = {
        "e-mail": "ann@example.com",
        "DNS": "ann.example.org",
        "subject": subject_of(path),
        "another": "bob@example.com",
    }[name]
    context = authority.client_context(path)
    first = listen == "before INFO"
    users = f'authorization {{ users: [ {{ user: "{user}" }} ] }}\n'
    tls = authority.server_config("verify_and_map: true" + (", handshake_first: true" if first else ""))
    with NatsServer(tls + users) as real, NatsServer(BEHIND) as behind:
        async with running(with_users(authority, behind.port, user, listen=listen)) as one:
            expected = await login(real.port, context, first=first)
            assert expected == (DENIED if name == "another" else b"PONG\r\n")
            assert await login(one.address.port, context, first=first) == expected
            closed = await one.closed()
            greeted = [event for event in one.events if isinstance(event, Greeted)]
    if name == "another":
        assert closed.detail == "the client's certificate stands for no user"
    else:
        assert greeted[0].user == closed.who.user == user


async def login(port: int, context: ssl.SSLContext, *, first: bool) -> bytes | str:
    """Log in; return the answer to CONNECT.  first: TLS comes before INFO."""
    if not first:
        return await converse(port, context, CONNECT)
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    async with trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True) as stream:
        assert (await stream.receive_some()).startswith(b"INFO ")
        await stream.send_all(CONNECT)
        return bytes(await stream.receive_some())


KINDS = list(itertools.product(LEGS[1:], LEGS))
"""Of both legs; only a client with TLS has a certificate."""


@asynccontextmanager
async def ann_only(authority: Authority, client: str, server: str) -> AsyncIterator[Running]:
    """Run a proxy before a real server: it logs in there itself, and ann's certificate is her login."""
    with NatsServer(server_config(authority, server) + BEHIND) as behind:
        made = with_users(authority, behind.port, "ann@example.com", listen=client, server=server)
        async with running(made) as one:
            yield one
            closed = await one.closed()
            (greeted,) = [event for event in one.events if isinstance(event, Greeted)]
            assert greeted.user == closed.who.user == "ann@example.com"
            assert closed.who.tls_subject.startswith("CN=ann,")


@pytest.mark.parametrize(("client", "server"), KINDS)
async def test_nats_py(authority: Authority, client: str, server: str) -> None:
    """Its certificate stands for a user of the proxy, whatever the other leg has."""
    certificate = authority.client("ann")

    async def program() -> None:
        more = options(authority, client, certificate)
        connection = await nats.connect(f"nats://{one.address}", allow_reconnect=False, **more)
        subscription = await connection.subscribe("a")
        for size in (0, 100, 70_000):
            await connection.publish("a", b"x" * size)
            assert len((await subscription.next_msg(20)).data) == size
        await connection.drain()

    async with ann_only(authority, client, server) as one:
        await in_asyncio(program)


@pytest.mark.parametrize(
    ("client", "server"),
    [
        pytest.param(*kinds, marks=[] if kinds == ("after INFO", "plain") else pytest.mark.long)
        for kinds in KINDS
    ],
)
async def test_nats_js(authority: Authority, client: str, server: str) -> None:
    """Its certificate stands for a user of the proxy."""
    certificate = str(authority.client("ann"))
    tls = {"caFile": str(authority.file), "certFile": certificate, "keyFile": certificate}
    more = json.dumps({"tls": {**tls, "handshakeFirst": client == "before INFO"}})
    async with ann_only(authority, client, server) as one:
        run = partial(run_node, PROGRAM, f"nats://{one.address}", more)
        assert await trio.to_thread.run_sync(run) == "hello: 11 headers: yes\n"


async def test_an_intermediate_ca_is_trusted_by_itself(tmp_path: Path) -> None:
    """On both legs, as by nats-server: the file that a CA hands out may not have the root."""
    root = trustme.CA()
    authority = Authority(tmp_path, root.create_child_ca())
    certificate = authority.client("ann")
    context = ssl.create_default_context()
    root.configure_trust(context)
    context.load_cert_chain(certificate)
    tls = {"tls": {"ca": authority.file}, "upstream_tls": {"cert": certificate}}
    with NatsServer(server_config(authority, "after INFO", "verify: true")) as real:
        assert await converse(real.port, context, CONNECT) == b"PONG\r\n"
        async with between(authority, "after INFO", real, "after INFO", **tls) as one:
            assert await converse(one.address.port, context, CONNECT) == b"PONG\r\n"


async def test_a_client_without_tls_has_no_certificate(authority: Authority) -> None:
    """Where it may do without, it is nobody."""
    with NatsServer(BEHIND) as behind:
        made = with_users(authority, behind.port, "ann@example.com")
        async with running(replace(made, tls=replace(made.tls, allow_non_tls=True))) as one:
            assert await plain(one.address.port) == DENIED
            assert (await one.closed()).detail == "the client has shown no certificate"


async def test_another_table_is_for_new_connections(authority: Authority) -> None:
    """A reload takes a user away, and gives it back."""
    context = authority.client_context(authority.client("ann"))
    with NatsServer(BEHIND) as behind:
        made = with_users(authority, behind.port, "ann@example.com")
        async with running(made) as one:
            for users, answer in (("bob", DENIED), ("ann", b"PONG\r\n")):
                one.proxy.load_identity(replace(OWN, users=frozenset({f"{users}@example.com"})), {})
                assert await converse(one.address.port, context, CONNECT) == answer


def test_the_order_of_the_names() -> None:
    """E-mail addresses, DNS names, URIs, and the subject at last."""
    found = {
        "subject": ((("organizationName", "A, B"),), (("commonName", "ann"),)),
        "subjectAltName": (("URI", "spiffe://x"), ("DNS", "a.b"), ("IP Address", "::1"), ("email", "a@b")),
    }
    certificate = certificate_of(found)
    assert certificate.subject == "CN=ann,O=A\\, B"
    assert certificate.names == ("a@b", "a.b", "spiffe://x", "CN=ann,O=A\\, B")
    del found["subject"]
    assert certificate_of(found) == ("URI:spiffe://x", ("a@b", "a.b", "spiffe://x"))
    assert certificate_of(None) == ("", ())


OPERATOR = Operator()
CREDS = read_credentials(OPERATOR.creds("orders"))


@pytest.mark.parametrize("login", ["user", "JWT"])
async def test_a_server_that_maps_the_certificate_of_the_proxy(authority: Authority, login: str) -> None:
    """It accepts any user in CONNECT, so its word for one is none; a JWT of its operator it has checked."""
    users = 'accounts { SHOP { users: [ { user: "proxy@example.com" } ] } }\n'
    mode = ("verify: true", OPERATOR.config) if login == "JWT" else ("verify_and_map: true", users)
    connect: dict[str, object] = {"verbose": False, "protocol": 1, "user": "root"}
    with NatsServer(server_config(authority, "after INFO", mode[0]) + mode[1]) as real:
        ours = {"cert": authority.client("proxy")}
        async with between(authority, "plain", real, "after INFO", upstream_tls=ours) as one:
            async with await trio.open_tcp_stream("127.0.0.1", one.address.port) as stream:
                info = json.loads((await stream.receive_some()).partition(b" ")[2].partition(b"\r\n")[0])
                if login == "JWT":
                    del connect["user"]
                    connect |= CREDS.connect_fields(info["nonce"])
                await stream.send_all(b"CONNECT %b\r\nPING\r\n" % json.dumps(connect).encode())
                got = b""
                while b"INFO " not in got:  # the one that names the account
                    got += await stream.receive_some()
            closed = await one.closed()
    assert (closed.who.user, closed.who.user_by) == (
        ("orders", "server") if login == "JWT" else ("root", "client")
    )
