"""Who a client is, and on whose word: at the end of its connection, and where a rule acts on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trio
from structlog.testing import CapturingLogger

from natsproxy.addresses import Address
from natsproxy.admin.statistics import Statistics
from natsproxy.capture.format.records import FiringRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Closed, Event, Firing, Who
from natsproxy.log import log_event
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import read_claims, read_credentials
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
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
    events, _ = await events_of(config, options, signed=signed)
    (closed,) = (one for one in events if isinstance(one, Closed))
    return closed


async def events_of(
    config: str, options: dict[str, str], *, signed: bool = False, rules: str = "", record: Path | None = None
) -> tuple[list[Event], Statistics]:
    """Return the events of such a connection, and the proxy's statistics."""
    events: list[Event] = []
    with NatsServer(config) as server:
        upstream = (Server(Address("127.0.0.1", server.port)),)
        recording = RecordSettings(record) if record is not None else None
        settings = ProxySettings(listen=(Listener(),), upstream=upstream, record=recording)
        proxy = Proxy(settings, RuleChain(load(rules, KINDS)) if rules else None)
        proxy.subscribe(events.append)
        statistics = Statistics(proxy, pytest.fail)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            with trio.fail_after(LIMIT):
                await _talk(proxy.listen[0].port, dict(options), signed=signed)
                while not any(isinstance(one, Closed) for one in events):  # noqa: ASYNC110
                    await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    return events, statistics


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
        if b"PONG\r\n" in got:
            await stream.send_all(b"PUB secret.a 2\r\nhi\r\nPING\r\n")
            while got.count(b"PONG\r\n") < 2:
                got += await stream.receive_some()


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
    assert (closed.who.user, closed.who.user_by) == (user, by)


async def test_a_server_that_is_asked_repeats_the_claim() -> None:
    """So its answer would verify nothing: this client is `ann`, and has shown no nkey."""
    claim = json.dumps({"verbose": False, "nkey": NKEY}).encode()
    with NatsServer(ANONYMOUS, monitor=True) as server, trio.fail_after(LIMIT):
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            await stream.send_all(
                b"CONNECT %b\r\nSUB inbox 1\r\nPUB $SYS.REQ.USER.INFO inbox 0\r\n\r\n" % claim
            )
            got = b""
            while b'"data"' not in got:
                got += await stream.receive_some()
            connz = await trio.to_thread.run_sync(
                lambda: urlopen(f"{server.monitor_url}/connz?auth=1").read()
            )
    assert f'"user":"{NKEY}"'.encode() in got
    assert json.loads(connz)["connections"][0]["authorized_user"] == NKEY


async def test_the_account_of_a_jwt() -> None:
    """Servers tell it since 2.12; the claim is the same."""
    closed = await end_of(OPERATOR.config, {}, signed=True)
    assert closed.who.account == OPERATOR.account == CLAIMS["iss"]


DENY = '[[rules]]\nname = "no secrets"\nkind = "deny"\nsubject = "secret.>"\n'


@pytest.mark.parametrize(
    ("config", "options", "signed", "who", "label"),
    [
        pytest.param(
            OPERATOR.config,
            {"name": "shop"},
            True,
            Who(name="shop", user="orders", user_by="server", account=OPERATOR.account),
            ("orders", OPERATOR.account),
            id="JWT",
        ),
        pytest.param(
            "",
            {"user": "root", "pass": "x"},
            False,
            Who(user="root", user_by="client", account="$G"),
            ("(claimed)", ""),
            id="nobody asks",
        ),
    ],
)
async def test_a_firing_says_who(
    config: str, options: dict[str, str], signed: bool, who: Who, label: tuple[str, str], tmp_path: Path
) -> None:
    """The event, the line of the log, the capture and, where the user is verified, the metric."""
    record = tmp_path / "x.ncap"
    events, statistics = await events_of(config, options, signed=signed, rules=DENY, record=record)
    (firing,) = (one for one in events if isinstance(one, Firing))
    assert firing.who._replace(client="") == who
    facts = {name: fact for name, fact in firing.who._asdict().items() if fact}
    assert facts["client"].startswith("127.0.0.1:")
    log = CapturingLogger()
    log_event(log, firing)
    line: dict[str, Any] = log.calls[0].kwargs
    assert facts.items() <= line.items()
    assert {name for name in Who._fields if line[name] is not None} == facts.keys()
    (info,) = (item.info for _, item in open_capture(record).items() if isinstance(item, FiringRecord))
    assert {name: info.get(name, "") for name in Who._fields} == firing.who._asdict()
    assert dict(statistics.fired_by) == {("no secrets", "deny", *label): 1}
