"""Clients that the proxy knows by their certificates."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import nats
import pytest
import trio
from click.testing import CliRunner

from natsproxy.addresses import Address
from natsproxy.capture.format.records import CloseRecord, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import TlsSettings
from natsproxy.events import Closed, Event
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import Credentials
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.values import Identity
from natsproxy.units import SECOND
from tests.kit.authority import Authority
from tests.kit.servers import NatsServer

RULES = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "no"\nclient = { tls_subject = "CN=ann,*" }\n'


def publish_denied(url: str, context: ssl.SSLContext, meanwhile: Callable[[], None] | None = None) -> str:
    """Publish what a rule denies, and return the error; `meanwhile` is called in the loop's thread before."""

    async def program() -> str:
        error: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def on_error(said: Exception) -> None:
            if not error.done():
                error.set_result(str(said))

        client = await nats.connect(url, tls=context, error_cb=on_error, user="anybody", password="at all")
        await client.flush()
        if meanwhile is not None:
            trio.from_thread.run_sync(meanwhile)
        await client.publish("no")
        found = await asyncio.wait_for(error, 30)  # a PING of `flush` may overtake the message
        await client.close()
        return found

    return asyncio.run(program())


@pytest.mark.server
async def test_the_subject_of_a_certificate_is_a_client(tmp_path: Path) -> None:
    """It lets the client use the proxy's login, chooses its rules, and is in log and capture."""
    authority = Authority(tmp_path)
    context = authority.client_context(authority.client("ann"))
    refused = ""
    events: list[Event] = []
    with NatsServer('authorization { user: "u", password: "p" }') as server:
        settings = ProxySettings(
            listen=(Listener(Address(), "tls"),),
            upstream=(Server(Address("127.0.0.1", server.port)),),
            connect_timeout=30 * SECOND,
            tls=TlsSettings(cert=authority.server(), ca=authority.file),
            identity=Identity(Credentials("u", "p"), "certificate"),
            record=RecordSettings(tmp_path / "x.ncap"),
        )
        proxy = Proxy(settings, RuleChain(load(RULES, KINDS)))
        proxy.subscribe(events.append)
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            refused = await trio.to_thread.run_sync(publish_denied, f"tls://{address}", context)
            await proxy.drain(5)
    (closed,) = [event for event in events if isinstance(event, Closed)]
    (opened,) = [
        item for _, item in open_capture(tmp_path / "x.ncap").items() if isinstance(item, OpenRecord)
    ]
    assert closed.who.tls_subject == opened.info["tls_subject"]
    assert closed.who.tls_subject.startswith("CN=ann,")
    assert "permissions violation" in refused


BY_ACCOUNT = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "no"\nclient = { account = "A" }\n'


@pytest.mark.server
async def test_a_capture_has_the_user_of_a_certificate_and_the_account(tmp_path: Path) -> None:
    """As the log: at its opening, in the preamble of the next segment, and at its end."""
    authority = Authority(tmp_path)
    context = authority.client_context(authority.client("ann"))
    path, refused, events = tmp_path / "capture", "", list[Event]()
    with NatsServer('accounts { A { users: [ { user: "u", password: "p" } ] } }') as server:
        settings = ProxySettings(
            listen=(Listener(Address(), "tls"),),
            upstream=(Server(Address("127.0.0.1", server.port)),),
            connect_timeout=30 * SECOND,
            tls=TlsSettings(cert=authority.server(), ca=authority.file),
            identity=Identity(Credentials("u", "p"), "certificate", users=frozenset({"ann@example.com"})),
            record=RecordSettings(path),
        )
        proxy = Proxy(settings, RuleChain(load(BY_ACCOUNT, KINDS)))
        proxy.subscribe(events.append)
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(proxy.serve)
            refused = await trio.to_thread.run_sync(publish_denied, f"tls://{address}", context, proxy.rotate)
            await proxy.drain(5)
    (closed,) = [event for event in events if isinstance(event, Closed)]
    assert (closed.who.user, closed.who.account, "permissions violation" in refused) == (
        "ann@example.com",
        "A",
        True,
    )
    items = [item for _, item in open_capture(path).items()]
    (opened,) = [item.info for item in items if isinstance(item, OpenRecord)]
    (before,) = [item.info["open"] for item in items if isinstance(item, Preamble)]
    (end,) = [item.info for item in items if isinstance(item, CloseRecord)]
    assert opened["user"] == closed.who.user
    for info in (before, end):
        assert {name: info[name] for name in ("user", "account", "tls_subject")} == {
            name: getattr(closed.who, name) for name in ("user", "account", "tls_subject")
        }
    told = CliRunner(env={"COLUMNS": "400"}).invoke(main, ["capture", "cat", str(path)]).output
    assert told.count(f", user ann@example.com, account A, certificate {closed.who.tls_subject}") == 2
    facts = json.loads(CliRunner().invoke(main, ["capture", "info", "--json", str(path)]).output)
    assert [(one["user"], one["account"]) for one in facts["connections"]] == [(closed.who.user, "A")]
