"""Who uses the admin API: tokens with names and roles, and what is known of them afterwards."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.admin.api.app import admin_app, operations_of
from natsproxy.admin.page.sessions import Sessions
from natsproxy.capture.format.records import Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.admin import ADMIN_VARIABLE, AdminSettings, Caller, token_hash, with_token
from natsproxy.config.endpoints import HttpListener
from natsproxy.errors import ConfigError
from natsproxy.events import Event, Notice
from natsproxy.testing import NatsServer
from tests.admin.kit import Api, client_of, running

ALICE, BOB = "alice-has-a-token-of-her-own", "bob-has-a-token-of-his-own"
CALLERS = {token_hash(ALICE): Caller("alice"), token_hash(BOB): Caller("bob", changes=False)}
RULE = {"name": "late", "kind": "latency", "delay": "1ms", "subject": "a"}
TABLE = """
[[tokens]]
name = "alice"
role = "operator"
sha256 = "{alice}"

[[tokens]]
name = "bob"
role = "reader"
sha256 = "{bob}"
"""


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def test_each_change_says_who_made_it(nats_server: NatsServer, tmp_path: Path) -> None:
    """In the log and, while one is made, in the capture."""
    async with running(nats_server, tmp_path, CALLERS) as api, client_of(api):
        events: list[Event] = []
        api.proxy.subscribe(events.append)
        for method, path, body in (
            ("POST", "capture", {"name": "x.ncap"}),
            ("POST", "rules", {"rule": RULE}),
            ("PATCH", "connections/1", {"suspended": True}),
            ("PATCH", "connections/1", {"paused": True}),
            ("POST", "capture/mark", {"text": "here"}),
            ("DELETE", "connections/1", None),
            ("DELETE", "rules/late", None),
            ("DELETE", "capture", None),
        ):
            assert (await api.ask(method, path, body, token=ALICE)).status < 300, path
        told = [
            (one.text, one.conn, one.data["by"])
            for one in events
            if isinstance(one, Notice) and "by" in one.data
        ]
    assert told == [
        ("capture started", None, "alice"),
        ("rule added", None, "alice"),
        ("connection suspended", 1, "alice"),
        ("connection paused", 1, "alice"),
        ("capture marked", None, "alice"),
        ("connection closed", 1, "alice"),
        ("rule removed", None, "alice"),
        ("capture stops", None, "alice"),
    ]
    marks = [
        item.info["mark"]
        for _, item in open_capture(tmp_path / "x.ncap").items()
        if isinstance(item, Note) and "mark" in item.info
    ]
    assert marks == [
        "capture started by alice, name x.ncap",
        "rule added by alice, rule late",
        "connection suspended by alice, connection 1",
        "connection paused by alice, connection 1",
        "here",
        "connection closed by alice, connection 1",
        "rule removed by alice, rule late",
        "capture stops by alice",
    ]


async def test_a_reader_changes_nothing(nats_server: NatsServer) -> None:
    """Every operation that is no GET is refused, but for the link to the page; all that reads is answered."""
    rows = operations_of({}, {}, None, Sessions())
    async with running(nats_server, callers=CALLERS) as api:
        before = (await api.ask("GET", "rules", token=BOB)).json
        for row in rows:
            path = row.path.replace("{proxy}", "main").replace("{conn}", "1").replace("{name}", "late")
            if row.method != "GET" and row.name != "makePageLink":
                answer = await api.ask(row.method, path, {}, token=BOB)
                assert (answer.status, answer.json["error"]) == (
                    403,
                    "bob may only read: the token has the role reader",
                ), row.name
        assert (await api.ask("GET", "rules", token=BOB)).json == before
        assert (await api.ask("GET", "/v1/caller", token=BOB)).json == {"name": "bob", "changes": False}
        assert (await api.ask("GET", "/v1/caller", token=ALICE)).json == {"name": "alice", "changes": True}
        assert (await api.ask("GET", "rules", token=BOB + "x")).status == 401
        assert not api.proxy._accepting.cancel_called


async def test_the_page_of_a_reader_reads(nats_server: NatsServer) -> None:
    """The session of a browser is that of the token which made its link."""
    async with running(nats_server, callers=CALLERS) as api:
        for token, status in ((BOB, 403), (ALICE, 201)):
            cookie = await session(api, token)
            assert (await api.ask("GET", "rules", headers=cookie, token=None)).status == 200
            assert (
                await api.ask("POST", "rules", {"rule": RULE}, headers=cookie, token=None)
            ).status == status


async def session(api: Api, token: str) -> dict[str, str]:
    link = (await api.ask("POST", "/v1/page-links", token=token)).json["path"]
    entered = await api.ask("GET", link, token=None)
    return {"Cookie": entered.headers["set-cookie"].partition(";")[0]}


def read(text: str, folder: Path) -> AdminSettings:
    file = folder / "tokens.toml"
    file.write_text(text)
    return with_token(AdminSettings(admin=HttpListener(Address("127.0.0.1", 0)), admin_tokens=file))


def test_the_table_of_tokens(tmp_path: Path) -> None:
    assert dict(read(TABLE.format(alice=digest(ALICE), bob=digest(BOB)), tmp_path).callers) == CALLERS


WHOLE = TABLE.format(alice=digest(ALICE), bob=digest(BOB))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"must have \[\[tokens\]\] tables with name, role, sha256, and nothing else"),
        ("[[tokens]]", "must have name, role, sha256 in token 1, and nothing else"),
        (WHOLE.replace(digest(BOB), digest(ALICE)), "must have a sha256 of its own for 'bob'"),
        (WHOLE.replace(digest(ALICE), ALICE), "must have a sha256 of its own for 'alice': 64 hexadecimal"),
        (WHOLE.replace("reader", "boss"), "has no valid role for 'bob': there are operator, reader"),
        (WHOLE.replace("bob", "alice"), "must have a name of its own in token 2"),
        (WHOLE.replace('"reader"', '["reader"]'), "has no valid role for 'bob'"),
        (WHOLE.replace("bob", "admin"), "must have a name of its own in token 2"),  # that of the token alone
        ("tokens =", "is not valid TOML"),
    ],
)
def test_mistakes_in_the_table(text: str, says: str, tmp_path: Path) -> None:
    """The error names the file and the token, and quotes none."""
    with pytest.raises(ConfigError, match=says) as caught:
        read(text, tmp_path)
    assert str(tmp_path / "tokens.toml") in str(caught.value)
    assert ALICE not in str(caught.value)


def test_the_first_token_keeps_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that has it too, for a reader, is refused."""
    monkeypatch.setenv(ADMIN_VARIABLE, BOB)
    with pytest.raises(ConfigError, match="must have a sha256 of its own for 'bob'"):
        read(WHOLE, tmp_path)
    assert read(WHOLE.replace(digest(BOB), digest("x")), tmp_path).callers[token_hash(BOB)] == Caller()


async def test_without_the_guard_nothing_can_be_changed(nats_server: NatsServer) -> None:
    """Nobody is an operator because somebody forgot to say who it is."""
    async with running(nats_server) as api:
        app = admin_app({"main": api.managed})
        scope = {"type": "http", "method": "DELETE", "path": "/v1/proxies/main/rules/late", "headers": []}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await app({**scope, "query_string": b"", "root_path": ""}, trio.sleep_forever, send)
    assert sent[0]["status"] == 403
