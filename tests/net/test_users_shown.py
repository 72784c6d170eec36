"""Who a client is, and on whose word, at the end of its connection."""

from __future__ import annotations

import json

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import read_claims, read_credentials
from natsproxy.testing import NatsServer
from tests.kit.accounts import Operator

LIMIT = 20.0  # seconds
OPERATOR = Operator()
CREDS = OPERATOR.creds("orders")
CLAIMS = read_claims(CREDS) or {}
UNKNOWN = read_credentials(Operator().creds("root"))
NKEY = UNKNOWN.key.public if UNKNOWN.key is not None else ""
PASSWORDS = 'accounts { SHOP { users: [{ user: "ann", password: "a-pw" }] } }'
ANONYMOUS = f"{PASSWORDS}\nno_auth_user: ann"
pytestmark = pytest.mark.server


async def end_of(config: str, options: dict[str, str], *, signed: bool = False) -> Closed:
    """Return the end of a connection through a proxy to a server of this configuration.

    options: of the client's CONNECT.  signed: with the JWT of `CREDS` and its signature.
    """
    events: list[Event] = []
    with NatsServer(config) as server:
        upstream = (Server(Address("127.0.0.1", server.port)),)
        proxy = Proxy(ProxySettings(listen=(Listener(),), upstream=upstream))
        proxy.subscribe(events.append)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            with trio.fail_after(LIMIT):
                await _talk(proxy.listen[0].port, dict(options), signed=signed)
                while not (ends := [one for one in events if isinstance(one, Closed)]):  # noqa: ASYNC110
                    await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    return ends[0]


async def _talk(port: int, options: dict[str, str], *, signed: bool) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        got = b""
        while b"\r\n" not in got:
            got += await stream.receive_some()
        if signed:
            credentials = read_credentials(CREDS)
            assert credentials.key is not None
            nonce = json.loads(got.partition(b" ")[2].partition(b"\r\n")[0])["nonce"]
            options |= {"jwt": credentials.jwt, "sig": credentials.key.sign(nonce)}
        connect = json.dumps({"verbose": False, "protocol": 1, **options})
        await stream.send_all(b"CONNECT %b\r\nPING\r\n" % connect.encode())
        got = b""
        while b"PONG\r\n" not in got and (data := await stream.receive_some()):
            got += data


@pytest.mark.parametrize(
    ("config", "options", "signed", "user", "by"),
    [
        pytest.param(OPERATOR.config, {}, True, "orders", "server", id="JWT"),
        pytest.param(OPERATOR.config, {"user": "root"}, True, "root", "client", id="JWT and another user"),
        pytest.param(PASSWORDS, {"user": "ann", "pass": "a-pw"}, False, "ann", "server", id="password"),
        pytest.param(PASSWORDS, {"user": "ann", "pass": "wrong"}, False, "ann", "client", id="refused"),
        pytest.param("", {"user": "ann", "pass": "a-pw"}, False, "ann", "client", id="nobody asks"),
        pytest.param("", {}, False, "", "", id="no user"),
        pytest.param(ANONYMOUS, {"user": "ann", "pass": "a-pw"}, False, "ann", "server", id="beside nobody"),
        pytest.param(ANONYMOUS, {"jwt": UNKNOWN.jwt}, False, "root", "client", id="JWT that nobody checks"),
        pytest.param(ANONYMOUS, {"nkey": NKEY}, False, NKEY, "client", id="nkey that nobody checks"),
    ],
)
async def test_the_end_says_who_and_by_whose_word(
    config: str, options: dict[str, str], signed: bool, user: str, by: str
) -> None:
    """What the server did not have to accept, or may have taken another credential for, is only claimed."""
    closed = await end_of(config, options, signed=signed)
    assert (closed.user, closed.user_by) == (user, by)


async def test_the_account_of_a_jwt() -> None:
    """Servers tell it since 2.12; the claim is the same."""
    closed = await end_of(OPERATOR.config, {}, signed=True)
    assert closed.account == OPERATOR.account == CLAIMS["iss"]
