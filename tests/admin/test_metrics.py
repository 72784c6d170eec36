"""/metrics: what a real conversation with rules makes of it, and what readers accept."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from click.testing import CliRunner
from nats.aio.msg import Msg
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from natsproxy.cli import main
from natsproxy.net.arrivals import FIRST_LIMIT
from natsproxy.testing import NatsServer
from natsproxy.wire.scanner import COMPILED
from tests.kit.process import ProxyProcess

RULES = """
[[rules]]
name = "late"
kind = "latency"
delay = "5ms"
subject = "late.>"
direction = "c2s"

[[rules]]
name = "shy"
kind = "deny"
mode = "shadow"
subject = "other.*"
op = "PUB"

[[rules]]
name = "lost"
kind = "drop"
subject = "lost.>"
direction = "c2s"
"""
OPEN = "application/openmetrics-text; version=1.0.0"
MESSAGES = 10
REQUESTS = 200


@dataclass
class Scraped:
    kind: str
    text: str


def scrape(url: str, accept: str = "text/plain") -> Scraped:
    request = urllib.request.Request(url + "/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return Scraped(answer.headers["Content-Type"], answer.read().decode())


async def converse(url: str) -> None:
    client = await nats.connect(url)
    try:
        messages = await client.subscribe("*.>")
        for _ in range(MESSAGES):
            await client.publish("late.a", b"x")
            await client.publish("lost.a", b"x", headers={"a": "b"})
            await client.publish("other.a", b"x")
        for _ in range(2 * MESSAGES):
            await messages.next_msg(10)
    finally:
        await client.close()


@pytest.fixture(scope="module")
def url(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of the port of a proxy that has served one client."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "rules.toml").write_text(RULES)
    flags = ("--monitor", "127.0.0.1:0", "--rules", str(folder / "rules.toml"), "--record-flush", "1ms")
    with ProxyProcess(nats_server.url, *flags, "--record", str(folder / "all.ncap")) as proxy:
        asyncio.run(converse(f"nats://127.0.0.1:{proxy.port}"))
        proxy.wait_for(lambda line: line["event"] == "closed")
        yield proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]


def values(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Return all values by name and labels, these in the order of their names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_conversation_with_rules_adds_up(url: str) -> None:
    found = values(plain_families(scrape(url).text))

    def frames(op: str) -> list[float]:
        points = (("c2s", "client"), ("c2s", "server"), ("s2c", "server"), ("s2c", "client"))
        return [found.get(("natsproxy_frames_total", *point, op), 0) for point in points]

    assert frames("PUB") == [2 * MESSAGES, 2 * MESSAGES, 0, 0]
    assert frames("HPUB") == [MESSAGES, 0, 0, 0]
    assert frames("MSG") == [0, 0, 2 * MESSAGES, 2 * MESSAGES]
    assert frames("CONNECT") == [1, 1, 0, 0]
    sizes = [found["natsproxy_bytes_total", "c2s", leg] for leg in ("client", "server")]
    assert sizes[0] - sizes[1] == MESSAGES * len("HPUB lost.a  18 19\r\nNATS/1.0\r\na: b\r\n\r\nx\r\n")
    assert found["natsproxy_rule_firings_total", "drop", "lost"] == MESSAGES
    assert found["natsproxy_rule_firings_total", "would deny", "shy"] == MESSAGES
    would = {
        labels[1]: number
        for labels, number in found.items()
        if labels[0] == "natsproxy_rule_would_fire_total"
    }
    assert would == {"shy": MESSAGES}  # and not those of rules that have acted
    held = found["natsproxy_rule_firings_total", "hold", "late"]
    assert held >= MESSAGES  # the client's UNSUBs are no messages, but what follows one waits as well
    assert found["natsproxy_rule_delay_seconds_count",] == held
    assert found["natsproxy_rule_delay_seconds_sum",] == pytest.approx(held * 0.005)
    assert found["natsproxy_rule_delay_seconds_bucket", "0.002"] == 0
    assert found["natsproxy_rule_delay_seconds_bucket", "0.005"] == held
    assert found["natsproxy_connections_accepted_total",] == 1
    assert found["natsproxy_connections_open",] == 0
    assert found["natsproxy_logins",] == found["natsproxy_connections_waiting",] == 0
    assert found["natsproxy_logins_limit",] >= FIRST_LIMIT  # one client is no reason to lower it
    assert found["natsproxy_connections_delayed_total",] == 0
    assert found["natsproxy_connections_ended_total", "client-closed"] == 1
    assert found["natsproxy_python_step_seconds_count",] > 0
    assert found["natsproxy_recorder_frames_total",] >= 3 * MESSAGES
    assert found["natsproxy_upstream_dials_total", "connected"] >= 1
    assert found["natsproxy_upstream_ready",] == 1
    (server,) = {labels[1] for labels in found if labels[0] == "natsproxy_server_up"}
    assert found["natsproxy_server_up", server] == 1
    dials = found["natsproxy_server_dials_total", "connected", server]
    assert dials == found["natsproxy_upstream_dials_total", "connected"]


def test_requests_are_counted_by_their_status(url: str) -> None:
    name = "natsproxy_http_requests_total"
    before = values(plain_families(scrape(url).text)).get((name, "404", "monitor"), 0)
    with pytest.raises(urllib.error.HTTPError):
        scrape(url + "/none")
    assert values(plain_families(scrape(url).text))[name, "404", "monitor"] == before + 1


def test_open_metrics_is_given_to_those_who_ask(url: str) -> None:
    plain, asked = scrape(url), scrape(url, OPEN)
    assert plain.kind.startswith("text/plain")
    assert asked.kind.startswith(OPEN)
    assert asked.text.endswith("# EOF\n")
    assert asked.text.count("# EOF") == 1
    names = [
        {family.name for family in families}
        for families in (plain_families(plain.text), open_families(asked.text))  # type: ignore[no-untyped-call]
    ]
    assert len(names[0]) == len(names[1]) > 20


def test_promtool_has_no_objection(url: str, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=scrape(url).text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


async def ask(port: int) -> float:
    """Make requests of two users, and one that is refused its login; return the seconds of the slowest."""

    async def answer(message: Msg) -> None:
        await message.respond(b"yes")

    slowest = 0.0
    with socket.create_connection(("127.0.0.1", port), 10) as eve, eve.makefile("rb") as heard:
        assert heard.readline().startswith(b"INFO")
        eve.sendall(b'CONNECT {"user":"eve","pass":"no"}\r\nPUB eve.asks eve.hears 0\r\n\r\n')
        assert b"-ERR" in heard.read()
    ann, bob = [await nats.connect(f"nats://{name}:s3cret@127.0.0.1:{port}") for name in ("ann", "bob")]
    try:
        await bob.subscribe("orders.*.get", cb=answer)
        await bob.flush()
        for number in range(REQUESTS):
            begun = time.perf_counter()
            await ann.request(f"orders.{number}.get", b"")
            slowest = max(slowest, time.perf_counter() - begun)
        with pytest.raises(nats.errors.NoRespondersError):
            await bob.request("nobody.here", b"", headers={"a": "b"})
        await ann.publish("nobody.here", b"")  # no request
        await ann.flush()
    finally:
        await ann.close()
        await bob.close()
    return slowest


USERS = "authorization { users = [{user: ann, password: s3cret}, {user: bob, password: s3cret}] }"


TEMPLATES = (("--request-metrics", "templates"), "orders.*.get", "nobody.here")


@pytest.mark.parametrize(
    ("flags", "orders", "nobody"),
    [
        TEMPLATES,
        pytest.param(
            ("--request-metrics", "nobody.>", "--request-metrics", "*.*.get"),
            "*.*.get",
            "nobody.>",
            marks=pytest.mark.long,
        ),
        pytest.param((*TEMPLATES[0], "--threads", "2"), *TEMPLATES[1:], marks=pytest.mark.long),
    ],
)
def test_requests_are_measured_by_subject_and_by_user(
    flags: tuple[str, ...], orders: str, nobody: str
) -> None:
    with (
        NatsServer(config=USERS) as server,
        ProxyProcess(f"nats://127.0.0.1:{server.port}", "--monitor", "127.0.0.1:0", *flags) as proxy,
    ):
        slowest = asyncio.run(ask(proxy.port))
        url = proxy.wait_for(lambda line: line["event"] == "monitor listens")["url"]
        ann = proxy.wait_for(lambda line: line["event"] == "closed" and line.get("user") == "ann")["conn"]
        text = scrape(url, OPEN).text
    families = list(open_families(text))  # type: ignore[no-untyped-call]
    found = values(families)

    def counted(name: str, label: int) -> dict[str, float]:
        return {labels[label]: number for labels, number in found.items() if labels[0] == name}

    assert counted("natsproxy_requests_total", 1) == {orders: REQUESTS, nobody: 1}
    assert counted("natsproxy_requests_no_responders_total", 1) == {orders: 0, nobody: 1}
    assert counted("natsproxy_request_seconds_count", 1) == {orders: REQUESTS, nobody: 0}
    assert 0 < found["natsproxy_request_seconds_sum", orders] < REQUESTS * slowest
    # Neither what is published without a reply subject, nor who was not let in.
    assert counted("natsproxy_client_requests_total", 2) == {"ann": REQUESTS, "bob": 1}
    assert found["natsproxy_client_request_seconds_count", "$G", "ann"] == REQUESTS
    last = [one.exemplar for family in families for one in family.samples if one.exemplar]
    assert last
    assert {one.labels["connection"] for one in last} == {str(ann)}
    assert all(one.value <= slowest for one in last)
    if COMPILED:  # the requests themselves were no work for Python
        assert found["natsproxy_python_step_seconds_count",] < REQUESTS


def test_metrics_of_requests_need_a_port_that_shows_them() -> None:
    done = CliRunner().invoke(
        main, ["run", "--upstream", "nats://127.0.0.1:1", "--request-metrics", "templates", "--test"]
    )
    assert (done.exit_code, "request-metrics has no effect without monitor" in done.output) == (1, True)
    for wrong, why in ((("off", "a"), "excludes any other value"), (("a..b",), "must be off, templates or")):
        flags = [part for one in wrong for part in ("--request-metrics", one)]
        done = CliRunner().invoke(main, ["run", "--upstream", "nats://127.0.0.1:1", *flags])
        assert (done.exit_code, why in done.output) == (2, True)
