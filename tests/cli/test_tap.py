"""`natsproxy tap`: the lines of `capture cat` from a running proxy, filters, samples, and its ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from natsproxy.errors import Exit
from natsproxy.testing import NatsServer
from tests.kit.clients import settle
from tests.kit.process import ProxyProcess

HOSTILE = "w\x1b[31m\u202e"
Act = Callable[[Client, Client], Coroutine[Any, Any, None]]


class Tap:
    """The command as a process that looks at a proxy.  lines: of its output so far; told: of its errors."""

    def __init__(self, url: str, *options: str) -> None:
        command = [sys.executable, "-m", "natsproxy", "tap", "--admin", url, *options]
        environment = {**os.environ, "COLUMNS": "300", "PYTHONIOENCODING": "utf-8"}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self.lines: list[str] = []
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == f"looking at {url}\n"

    def until(self, pattern: str) -> str:
        """Read lines until one has a pattern; return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if re.search(pattern, line):
                return line
        raise AssertionError(self.lines)

    def end(self, number: int = signal.SIGINT) -> str:
        """Stop it by a signal; return what it told."""
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, told
        return told


@contextmanager
def admin(nats_server: NatsServer) -> Iterator[tuple[ProxyProcess, str]]:
    """Run a proxy with an admin API; give its URL."""
    with ProxyProcess(nats_server.url, "--admin", "127.0.0.1:0") as proxy:
        yield proxy, proxy.wait_for(lambda line: line["event"] == "admin listens")["url"]


@contextmanager
def tapping(url: str, *options: str) -> Iterator[Tap]:
    """Run the command."""
    tap = Tap(url, *options)
    # A tap that waits for a line that never comes must not stop the tests.
    limit = threading.Timer(60, tap.process.kill)
    limit.start()
    try:
        yield tap
    finally:
        limit.cancel()
        tap.process.kill()
        tap.process.communicate()


def act(proxy: ProxyProcess, what: Act) -> None:
    """Let two clients do something."""

    async def run() -> None:
        url = f"nats://127.0.0.1:{proxy.port}"
        shop = await nats.connect(url, name="shop")
        worker = await nats.connect(url, name=HOSTILE)
        await what(shop, worker)
        await shop.close()
        await worker.close()

    asyncio.run(run())


async def order(shop: Client, worker: Client) -> None:
    """Ask and answer, beside other traffic."""

    async def answer(message: Msg) -> None:
        await message.respond(b'{"ok":true}')

    await worker.subscribe("orders.*", cb=answer)
    await settle(worker)
    await shop.publish("other", b"no")
    await shop.request("orders.new", b"\x1b[2J\xff", headers={"X-Trace": "t\u202e1"}, timeout=30)
    await shop.publish("done", b"")
    await shop.flush()


def test_the_lines_are_those_of_a_capture(nats_server: NatsServer) -> None:
    with admin(nats_server) as (proxy, url), tapping(url) as tap:
        act(proxy, order)
        tap.until("#1 .*closed")
        told = tap.end()
        text = "\n".join(tap.lines)
        assert all(line.isprintable() for line in tap.lines), text
        assert re.search(r"#1 .*client 127\.0\.0\.1:\d+ connected, server 127\.0\.0\.1:\d+", text)
        assert re.search(r"#2 .* → CONNECT w\\x1b\[31m\\u202e ", text)
        assert re.search(r"#2 +w\\x1b\[31m\\u… +→ SUB +orders\.\*  sid 1", text)
        assert re.search(r"#1 +shop +→ HPUB +orders\.new  .*X-Trace: t\\u202e1  ", text)
        assert re.search(r"#1 +shop +← .*answer to orders\.new after ", text)
        assert "PING" not in text
        counts = re.fullmatch(r"(\d+) frames passed, (\d+) were looked at, (\d+) chosen", told.strip())
        assert counts is not None, told
        assert counts[1] == counts[2] == counts[3]


def test_the_proxy_selects(nats_server: NatsServer) -> None:
    exchange = ("--subject", "orders.new", "--subject", "done", "--direction", "c2s", "--exchange")
    narrow = ("--client", "sh*", "--header", "x-trace: t*", "--direction", "c2s", "--json")
    with admin(nats_server) as (proxy, url), tapping(url, *exchange) as whole, tapping(url, *narrow) as rows:
        act(proxy, order)
        whole.until("→ PUB +done")
        ways = [re.findall("[→←]", line)[0] for line in whole.lines if "#" in line]
        # The request and its delivery, the answer and its delivery; and the publish.
        assert ways == ["→", "←", "→", "←", "→"], whole.lines
        row = json.loads(rows.until("{"))
        assert (row["op"], row["client"], row["payload_hex"]) == ("HPUB", "shop", "1b5b324aff")
        assert row["headers"] == {"X-Trace": "t\u202e1"}
        assert "were looked at, 1 chosen" in rows.end(signal.SIGTERM)


def test_of_busy_traffic_there_is_a_sample(nats_server: NatsServer) -> None:
    count, ended = 30_000, threading.Event()

    async def flood(shop: Client, _: Client) -> None:
        for _number in range(count):
            await shop.publish("a", b"x")
        while not ended.is_set():  # the first ones may not be in the sample
            await shop.publish("a", b"end")
            await shop.flush()

    def read(tap: Tap) -> None:
        try:
            tap.until("end$")
        finally:
            ended.set()

    with admin(nats_server) as (proxy, url), tapping(url, "--subject", "a") as tap:
        reader = threading.Thread(target=read, args=(tap,))
        reader.start()
        act(proxy, flood)
        reader.join()
        told = tap.end()
    assert re.search(r"^sampled: [\d,]+ of [\d,]+ frames were looked at \(1 in [\d.]+\)$", told, re.MULTILINE)
    totals = re.search(r"([\d,]+) frames passed, ([\d,]+) were looked at", told)
    assert totals is not None, told
    passed, seen = (int(number.replace(",", "")) for number in totals.groups())
    assert passed >= count > seen


def test_the_ends(nats_server: NatsServer) -> None:
    with admin(nats_server) as (proxy, url):
        with tapping(url) as tap:
            assert tap.process.stdout is not None
            tap.process.stdout.close()
            act(proxy, order)
            assert tap.process.wait(60) == Exit.NOBODY_READS
            assert tap.process.stderr is not None
            assert tap.process.stderr.read() == ""
        with tapping(url) as tap:
            proxy.drain()
            _, told = tap.process.communicate(timeout=60)
            assert tap.process.returncode == 2
            assert re.search(rf"Error: {url}: the (proxy has gone|stream ended)", told), told
        command = [sys.executable, "-m", "natsproxy", "tap", "--admin", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith(f"Error: nobody answers at {url}")
