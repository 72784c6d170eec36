"""The page as it is served: its files, their headers, links that are good once, sessions of browsers."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest
import trio

from natsproxy.admin.api.page import SHAPES
from natsproxy.admin.api.schema import check
from natsproxy.admin.page.sessions import IDLE, LINK, Sessions, cookie_name
from natsproxy.config.admin import Caller
from natsproxy.testing import NatsServer
from natsproxy.wire.ops import Op
from tests.admin.kit import Answer, Api, running

CALLER = Caller()
STATIC = files("natsproxy.admin.page").joinpath("static")
NAMES = sorted(entry.name for entry in STATIC.iterdir())


async def enter(api: Api, path: str | None = None) -> Answer:
    """Open a link, a new one by default."""
    path = path or (await api.ask("POST", "/v1/page-links")).json["path"]
    return await api.ask("GET", path, token=None)


async def test_every_file_has_its_media_type_and_a_strict_policy(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        for name in NAMES:
            path = "/" if name == "index.html" else f"/page/{name}"
            answer = await api.ask("GET", path, token=None)
            assert answer.status == 200
            assert answer.body == STATIC.joinpath(name).read_bytes()
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            tag = {"If-None-Match": answer.headers["etag"]}
            assert (await api.ask("GET", path, headers=tag, token=None)).status == 304
        for path in ("/page/", "/page/none.js", "/page/..%2fapp.py", "/page/index.html"):
            assert (await api.ask("GET", path)).status == 404
            assert (await api.ask("GET", path, token=None)).status == 401


async def test_the_page_has_the_table_of_operations(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        text = (await api.ask("GET", "/page/ops.js", token=None)).body.decode()
    found = {name: json.loads(ops) for name, ops in re.findall(r"export const (\w+) = (.*);\n", text)}
    assert found["OPS"] == [op.label for op in Op]
    assert found["PUBLISHES"] == ["PUB", "HPUB"]
    assert found["DELIVERIES"] == ["MSG", "HMSG"]
    imported = {
        name
        for one in NAMES
        for names in re.findall(r'import \{ (.*) \} from "./ops.js"', STATIC.joinpath(one).read_text())
        for name in names.split(", ")
    }
    assert imported == set(found)


async def test_answers_of_the_api_have_the_headers_too(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        for token in (None, "wrong"):
            answer = await api.ask("GET", "rules", token=token)
            assert (answer.status, answer.headers["x-content-type-options"]) == (401, "nosniff")
        answer = await api.ask("GET", "rules")
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_link_is_good_once_and_makes_a_session(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        path = (await api.ask("POST", "/v1/page-links")).json["path"]
        assert (await api.ask("POST", "/v1/page-links", token=None)).status == 401
        assert (await api.ask("HEAD", path, token=None)).headers.get("set-cookie") is None
        answer = await enter(api, path)
        assert (answer.status, answer.headers["location"]) == (303, "/")
        set_cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(set_cookie.split("; "))
        cookie = {"Cookie": f'other=1; more={{"a b": [1]}}; {set_cookie.partition(";")[0]}'}
        assert (await api.ask("GET", "rules", headers=cookie, token=None)).status == 200
        again = await enter(api, path)
        assert (again.headers["location"], again.headers.get("set-cookie")) == ("/#stale-link", None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this host: the browser sends the cookie
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
    ],
)
async def test_a_cookie_is_taken_from_our_page_only(
    nats_server: NatsServer, headers: dict[str, str], status: int
) -> None:
    async with running(nats_server) as api:
        cookie = (await enter(api)).headers["set-cookie"].partition(";")[0]
        answer = await api.ask("GET", "rules", headers={"Cookie": cookie, **headers}, token=None)
        assert answer.status == status


async def test_a_cookie_that_names_no_session_is_none(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        name = cookie_name(str(api.address))
        for cookie in (f"{name}=", f"{name}=x", name, "=", ";;;", f'{name}="\\', "\x01", "x" * 8000):
            headers = {"Cookie": cookie}
            assert (await api.ask("GET", "rules", headers=headers, token=None)).status in (400, 401)


async def test_links_and_sessions_end_and_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    sessions = Sessions()
    late = sessions.link(CALLER)
    await trio.sleep(LINK + 1)
    assert sessions.enter(late) is None
    name = sessions.enter(sessions.link(CALLER))
    cookie = f"{cookie_name('127.0.0.1:80')}={name}"
    for _ in range(3):
        await trio.sleep(IDLE - 1)  # each use makes it last longer
        assert sessions.caller(cookie, "127.0.0.1:80") == CALLER
    assert not sessions.caller(cookie, "127.0.0.1:81")  # a proxy on another port
    await trio.sleep(IDLE + 1)
    assert not sessions.caller(cookie, "127.0.0.1:80")
    for _ in range(300):
        sessions.enter(sessions.link(CALLER))
        sessions.link(CALLER)
    assert len(sessions._links) <= 100
    assert len(sessions._sessions) <= 100


async def test_words_are_those_of_the_command(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        words = (await api.ask("GET", "/v1/words")).json
        check(words, SHAPES["Words"], SHAPES)
        kinds = {word["name"]: word for word in words["kinds"]}
        assert kinds["latency"]["rule"]["kind"] == "latency"
        required = [one["name"] for one in kinds["latency"]["settings"] if one.get("required")]
        assert required == ["delay"]
        assert {"ack", "pull"} <= {word["name"] for word in words["roles"]}


def test_scripts_make_no_markup_of_texts() -> None:
    for name in NAMES:
        text = STATIC.joinpath(name).read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        if name.endswith(".js"):
            made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
            assert not re.search(made, text), name
