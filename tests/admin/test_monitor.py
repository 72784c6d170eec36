"""The monitoring port beside nats-server's own: the same questions have answers of the same shape."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from natsproxy.admin.monitor.connz import asked as connz_asked
from natsproxy.admin.monitor.connz import connz
from natsproxy.admin.monitor.go_values import query
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.monitor.subsz import asked as subsz_asked
from natsproxy.admin.monitor.subsz import subsz
from natsproxy.testing import NatsServer
from tests.admin.kit import client_of, running
from tests.kit.clients import settle
from tests.kit.process import ProxyProcess

ACCOUNTS = """
accounts {
  A { users = [{ user: ann, password: a }] }
  B { users = [{ user: bob, password: b }] }
}
"""
FLOATS = {"cpu", "auth_timeout", "tls_timeout", "cache_hit_rate", "avg_fanout"}
"""The members that are floats in Go: a reader takes whole numbers there too."""
OURS = {"natsproxy"}
UNKNOWN = {"name_tag", "subscriptions_list", "tls_required", "auth_required", "feature_flags"}
"""The members that only the server itself can know, or that hold its own names."""


@dataclass
class Said:
    """An answer."""

    status: int
    kind: str
    origin: str | None
    text: str
    """Bytes that are no UTF-8 are lone surrogates."""

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(url: str, method: str = "GET") -> Said:
    request = urllib.request.Request(url, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        kind, origin = (answer.headers[name] for name in ("Content-Type", "Access-Control-Allow-Origin"))
        return Said(answer.status, kind, origin, answer.read().decode(errors="surrogateescape"))


@dataclass
class Both:
    """The monitoring ports of a server and of a proxy (before another server), with equal clients."""

    server: str
    proxy: str

    def ask(self, question: str, method: str = "GET") -> tuple[Said, Said]:
        return ask(self.server + question, method), ask(self.proxy + question, method)


async def hold_clients(url: str, stop: asyncio.Event, started: Event) -> None:
    """Run two clients, one with subscriptions and messages, after a third has ended."""
    ann = {"user": "ann", "password": "a"}
    bob = {"user": "bob", "password": "b"}

    async def client(name: str, who: dict[str, str]) -> Client:
        return await nats.connect(url, name=name, **who)

    one, two, three = await client("one", ann), await client("two", bob), await client("three", bob)
    try:
        await one.subscribe("x.>", queue="q")
        limited = await one.subscribe("y.*")
        await limited.unsubscribe(5)
        await one.publish("x.1", b"hello")
        await settle(one, two)
        await three.close()
        started.set()
        await stop.wait()
    finally:
        await one.close()
        await two.close()


@contextlib.contextmanager
def clients(url: str) -> Iterator[None]:
    """Hold clients in a thread."""
    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), Event()
    thread = Thread(target=loop.run_until_complete, args=(hold_clients(url, stop, started),))
    thread.start()
    try:
        assert started.wait(20)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with (
        NatsServer(ACCOUNTS, monitor=True) as direct,
        NatsServer(ACCOUNTS) as upstream,
        ProxyProcess(upstream.url, "--monitor", "127.0.0.1:0") as proxy,
        clients(direct.url),
        clients(f"nats://127.0.0.1:{proxy.port}"),
    ):
        monitor = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        proxy.wait_for(lambda line: line["event"] == "closed")
        yield Both(direct.monitor_url, monitor)


def compare(server: Any, proxy: Any, place: str = "") -> list[str]:
    """Return what differs in the members of two answers and in their types."""
    if isinstance(server, dict) and isinstance(proxy, dict):
        there, here = (set(one) - UNKNOWN - OURS for one in (server, proxy))
        found = [f"{place}.{key} is missing" for key in there - here]
        found += [f"{place}.{key} is too many" for key in here - there]
        for key in there & here:
            found += compare(server[key], proxy[key], f"{place}.{key}")
        return found
    if isinstance(server, list) and isinstance(proxy, list):
        if place.endswith("_detail"):  # the server's order is by chance
            server, proxy = (sorted(one, key=lambda sub: str(sub["subject"])) for one in (server, proxy))
        pairs = list(zip(server, proxy, strict=False))
        return [
            said for at, (one, other) in enumerate(pairs) for said in compare(one, other, f"{place}[{at}]")
        ]
    kinds = type(server), type(proxy)
    if place.rpartition(".")[2] in FLOATS and set(kinds) <= {int, float}:
        return []
    return [] if kinds[0] is kinds[1] else [f"{place} is {proxy!r}, the server has {server!r}"]


SORTS = (
    "cid start subs pending msgs_to msgs_from bytes_to bytes_from last idle uptime rtt".split()  # noqa: SIM905
)
QUESTIONS = [
    "/varz",
    "/varz?x=1",
    "/connz",
    *(f"/connz?sort={sort}" for sort in SORTS),
    *(f"/connz?sort={sort}&state=closed" for sort in [*SORTS, "stop", "reason"]),
    "/connz?auth=1",
    "/connz?auth=T&auth=0",
    "/connz?auth=",
    "/connz?subs=0",
    "/connz?subs=DETAIL&auth=true",
    "/connz?subs=detail",
    "/connz?limit=1",
    "/connz?limit=1&offset=1&sort=cid",
    "/connz?limit=0",
    "/connz?limit=-1&offset=-1",
    "/connz?limit=",
    "/connz?offset=99",
    "/connz?state=CLOSED&auth=1",
    "/connz?state=open",
    "/connz?state=any",
    "/connz?state=all&limit=2",
    "/connz?cid=999",
    "/connz?cid=999&offset=1&limit=7",
    "/connz?user=ann&auth=1",
    "/connz?user=nobody",
    "/connz?acc=A&auth=1",
    "/connz?acc=A",
    "/connz?acc=B&state=closed",
    "/connz?acc=B&state=any&user=bob",
    "/connz?acc=nope",
    "/connz?filter_subject=x.1",
    "/connz?filter_subject=x.1&acc=A",
    "/connz?filter_subject=z&acc=A",
    "/connz?limit=%2B1",
    "/connz?mqtt_client=z",
    "/connz?callback=f",
    "/connz?limit=%zz",
    "/connz?limit=x;offset=x",
    "/connz?limit=1&limit=x",
    f"/connz?limit={'0' * 50}1",
    "/connz?limit=9223372036854775807&offset=9223372036854775807",
    "/connz?acc=%FF",
    "/healthz",
    "/healthz?details=1",
    "/healthz?js-enabled-only=true",
    "/healthz?js-server-only=1",
    "/healthz?js-meta-only=1",
    "/healthz?account=A",
    "/healthz?stream=s",
    "/healthz?stream=s&details=1",
    "/healthz?consumer=c",
    "/routez",
    "/routez?subs=1",
    "/routez?subs=detail",
    "/gatewayz",
    "/gatewayz?accs=1",
    "/leafz",
    "/leafz?subs=1",
    "/jsz",
    "/jsz?accounts=1&streams=1&consumers=1&config=1&acc=A",
    "/subsz",
    "/subsz?subs=1",
    "/subscriptionsz",
    "/subsz?subs=1&test=x.1",
    "/subsz?subs=1&test=nobody",
    "/subsz?subs=1&acc=A&test=x.1",
    "/subsz?acc=Z",
    "/subsz?subs=1&test=a%20b",
    "/subsz?test=%0D%0A%FF",
]
MISTAKES = [
    "/",
    "/connz/",
    "/Varz",
    "/unknown",
    "/connz?sort=bad",
    "/connz?sort=CID",
    "/connz?sort=stop",
    "/connz?sort=reason&state=any",
    "/connz?auth=x&subs=x",
    "/connz?subs=x&offset=x",
    "/connz?offset=x&limit=x",
    "/connz?limit=x&cid=x",
    "/connz?cid=x&state=x",
    "/connz?cid=-1",
    "/connz?cid=%2B1",
    "/connz?cid=18446744073709551616",
    "/connz?limit=99999999999999999999",
    "/connz?limit=%00%22x%C3%A9%E2%80%A8",
    "/connz?limit=%FF",
    "/connz?sort=%FF",
    "/connz?state=%F0%9F%98%80%FF",
    "/connz?limit=1.0",
    "/connz?limit=1_0",
    "/connz?state=x&sort=bad",
    "/healthz?js-enabled=x",
    "/healthz?js-enabled-only=x",
    "/healthz?js-server-only=x",
    "/healthz?details=x",
    "/routez?subs=x",
    "/gatewayz?accs=x",
    "/leafz?subs=x",
    "/jsz?accounts=x",
    "/jsz?limit=x",
    "/jsz?offset=x",
    "/jsz?leader-only=1",
    "/subsz?subs=x",
    "/subsz?limit=x",
    "/subsz?offset=x",
    "/subsz?test=bad..x",
    "/subsz?test=x.*",
]
SAME = (
    "num_connections",
    "total",
    "offset",
    "limit",
    "num_routes",
    "leafnodes",
    "in_msgs",
    "out_msgs",
    "status",
)
SAME_OF_CONNECTION = (
    "name",
    "kind",
    "type",
    "ip",
    "lang",
    "version",
    "in_msgs",
    "out_msgs",
    "subscriptions",
    "reason",
    "authorized_user",
    "account",
    "subscriptions_list",
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_has_the_servers_shape(both: Both, question: str) -> None:
    server, proxy = both.ask(question)
    assert (proxy.status, proxy.kind, proxy.origin) == (server.status, server.kind, server.origin)
    assert compare(server.json, proxy.json) == []
    for key in SAME if "subsz" not in question and "subscriptionsz" not in question else ():
        assert proxy.json.get(key) == server.json.get(key), key
    if "connz" in question:
        shown = [
            sorted(
                [[one.get(key) for key in SAME_OF_CONNECTION] for one in said.json["connections"] or ()],
                key=lambda values: str(values[0]),
            )
            for said in (server, proxy)
        ]
        if "limit" not in question:
            assert shown[0] == shown[1]


@pytest.mark.parametrize("question", MISTAKES)
def test_a_mistake_has_the_servers_words(both: Both, question: str) -> None:
    server, proxy = both.ask(question)
    if question == "/":
        server = Said(404, "text/plain; charset=utf-8", None, "404 page not found\n")  # no page of ours
    assert proxy == server


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "OPTIONS"])
def test_any_method_will_do(both: Both, method: str) -> None:
    server, proxy = both.ask("/varz", method)
    assert (proxy.status, proxy.kind, proxy.origin) == (server.status, server.kind, server.origin)
    assert bool(proxy.text) == bool(server.text)


@pytest.mark.parametrize("details", ["", "?details=1"])
def test_a_proxy_without_an_upstream_is_not_healthy(details: str) -> None:
    with ProxyProcess("nats://127.0.0.1:1", "--monitor", "127.0.0.1:0") as proxy:
        url = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        said = ask(url + "/healthz" + details)
    assert said.status == 503
    assert said.json["status"] == "unavailable"
    assert set(said.json) == {"status", "errors" if details else "error"}


def test_one_connection_is_asked_for_by_its_number(both: Both) -> None:
    for url in (both.server, both.proxy):
        (one, two) = ask(f"{url}/connz").json["connections"]
        found = ask(f"{url}/connz?cid={two['cid']}&limit=5").json
        assert [found["num_connections"], found["total"], found["offset"], found["limit"]] == [1, 2, 0, 1]
        assert found["connections"][0]["name"] == two["name"] != one["name"]


def test_varz_says_what_is_ours(both: Both) -> None:
    before, after = (ask(both.proxy + "/varz").json for _ in range(2))
    assert after["version"] == ask(both.server + "/varz").json["version"] + "+natsproxy"
    assert after["now"] > before["now"]  # readers divide by the difference
    assert after["http_req_stats"]["/varz"] == before["http_req_stats"]["/varz"] + 1
    assert len(after["server_id"]) == 56
    ours = after["natsproxy"]
    assert ours["ready"] is True
    assert ours["ended"] == {"client-closed": 1}
    assert after["total_connections"] == ours["open"] + sum(ours["ended"].values()) == 3


def test_orders_are_the_servers(both: Both) -> None:
    for sort in ("cid", "start", "uptime"):
        server, proxy = (
            [one["name"] for one in said.json["connections"]]
            for said in both.ask(f"/connz?sort={sort}&state=any")
        )
        assert proxy == server, sort


@pytest.mark.parametrize("sort", ["subs", "msgs_from", "bytes_from"])
def test_the_largest_is_first(both: Both, sort: str) -> None:
    first = [said.json["connections"][0]["name"] for said in both.ask(f"/connz?sort={sort}&state=any")]
    assert first == ["one", "one"]


@pytest.mark.parametrize("question", ["connz?subs=1", "connz?subs=detail", "subsz?subs=1&limit=9999"])
async def test_many_subscriptions_of_one_client_come_in_pieces(
    nats_server: NatsServer, question: str
) -> None:
    """Traffic goes on between them: none takes long to make."""
    path, _, raw = question.partition("?")
    async with running(nats_server) as api, client_of(api) as client:
        await client.send(b"".join(b"SUB %s.%d %d\r\n" % (b"s" * 50, n, n) for n in range(5000)))
        await client.ping()
        server = MonitoredServer(api.managed, api.managed.statistics, {}, lambda: 0)
        asked = query(raw.encode())
        made = connz(server, connz_asked(asked)) if path == "connz" else subsz(server, subsz_asked(asked))
        pieces = [piece async for piece in made]
        assert max(map(len, pieces)) < 70_000
        answer = json.loads("".join(pieces))
        if path == "connz":
            (answer,) = answer["connections"]
        (listed,) = (value for key, value in answer.items() if key.startswith("subscriptions_list"))
        assert len(listed) == 5000
