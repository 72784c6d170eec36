"""`natsproxy top`: rates, the screen in all widths, keys, and a running proxy behind it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from rich.cells import cell_len

from natsproxy.admin.api.traffic import SORTS
from natsproxy.cli.top import busiest, with_rates
from natsproxy.cli.top_keys import ORDERS, RATE, TopView
from natsproxy.cli.top_screen import screen
from natsproxy.testing import NatsServer
from natsproxy.units import SECOND
from tests.kit.process import ProxyProcess

HOSTILE = "w\x1b[31m\u202e[bold]" + "日本" * 20


def row(conn: int, **given: Any) -> dict[str, Any]:
    """Return a connection as the API shows it."""
    counts = dict.fromkeys(("in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions", "waiting"), 0)
    texts = dict.fromkeys(("user", "account", "lang", "version"), "x")
    times = {"since_ns": 0, "last_ns": 0, "rtt_ns": 1000}
    fixed = {"conn": conn, "client": "127.0.0.1:1", "name": "app", "upstream": "127.0.0.1:2"}
    return {**fixed, **counts, **texts, **times, **given}


def answer(clock: float, *rows: dict[str, Any], started: int = 1, **given: int) -> dict[str, Any]:
    """Return an answer of `traffic` at a time (s)."""
    at = int(clock * SECOND)
    names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions", "firings", "gap_frames")
    counts = {**dict.fromkeys(names, 0), "total": len(rows), **given}
    return {"time_ns": at, "clock_ns": at, "started_ns": started, "connections": [*rows], **counts}


def test_rates_are_those_between_two_answers() -> None:
    before = answer(10, row(1, in_msgs=100), in_msgs=500, firings=1)
    new = row(3, in_msgs=8, since_ns=11 * SECOND)
    after = with_rates(before, answer(12, row(1, in_msgs=140), row(2), new, in_msgs=501, firings=5))
    assert after["rates"] == {"in_msgs": 0.5, "out_msgs": 0, "in_bytes": 0, "out_bytes": 0, "firings": 2}
    # Connection 2 was there before, but not in that answer.
    assert [one["rates"] and one["rates"]["in_msgs"] for one in after["connections"]] == [20, None, 4]
    assert [one["conn"] for one in busiest(after["connections"], 2)] == [1, 3]


def test_a_proxy_that_was_started_again_has_no_rates_at_first() -> None:
    before = answer(10, row(1, in_msgs=100), in_msgs=500)
    again = with_rates(before, answer(12, row(1, in_msgs=3), in_msgs=3, started=2))
    assert again["rates"] is None
    assert again["connections"][0]["rates"] is None


PROXY = {
    "name": "main",
    "listen": ["127.0.0.1:4222"],
    "upstream": ["nats://127.0.0.1:4223"],
    "ready": False,
    "reason": "no server \x1b[2J answers",
    "accepted": 7,
    "rules": 4,
    "rules_enabled": 3,
    "capture": "traffic\x07.ncap",
}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_screen_fits(width: int) -> None:
    rows = [row(number, name=HOSTILE, in_msgs=10**number, subjects=["a.\x1b[0m" * 50]) for number in (1, 9)]
    traffic = with_rates(answer(1), answer(2, *rows, total=20_000))
    lines = screen(PROXY, traffic, width, 14)
    assert len(lines) <= 14
    assert len(screen(PROXY, traffic, width, 5)) == 5
    text = "\n".join(line for line, _ in lines)
    assert all(cell_len(line) <= width for line, _ in lines), text
    assert all(line.isprintable() for line, _ in lines), text
    assert "w\\x1b[31m\\u202e[bold]" in text
    assert "2 of 20,000 connections" in text
    heads = next(line for line, style in lines if style == "reverse").split()
    assert heads[:2] == (["CONN", "NAME"] if width < 100 else ["CONN", "CLIENT"])
    assert ("RTT" in heads) == (width == 200)


def test_the_orders_are_those_of_the_api() -> None:
    assert set(ORDERS) == {RATE, *SORTS}


def test_keys() -> None:
    view = TopView()
    view.press("osubs\r")
    assert (view.order, view.line) == ("subs", "")
    view.press("onothing\x7f\r")
    assert view.order == "subs"
    assert view.line.startswith("there is no order 'nothin': there are rate, cid")
    view.press("n12\rd250ms\rs?")
    assert (view.number, view.delay, view.subjects, view.help) == (12, 0.25, True, True)
    for keys, said in (("n0\r", "1 to 1000"), ("d0\r", "at least 100ms"), ("dx\r", "duration")):
        view.press(keys)
        assert said in view.line
    view.press("n9")
    assert view.line == "connections: 9_"
    view.press("\x1b")
    view.press("\x1b[A")
    assert (view.number, view.delay, view.line, view.done) == (12, 0.25, "", False)
    view.press("q")
    assert view.done


@contextmanager
def admin(nats_server: NatsServer, *options: str) -> Iterator[tuple[ProxyProcess, str]]:
    """Run a proxy with an admin API; give its URL."""
    with ProxyProcess(nats_server.url, "--admin", "127.0.0.1:0", *options) as proxy:
        yield proxy, proxy.wait_for(lambda line: line["event"] == "admin listens")["url"]


@asynccontextmanager
async def client(proxy: ProxyProcess, name: str) -> AsyncIterator[Client]:
    connection = await nats.connect(f"nats://127.0.0.1:{proxy.port}", name=name)
    yield connection
    await connection.close()


def top(url: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, without a terminal."""
    command = [sys.executable, "-m", "natsproxy", "top", "--admin", url, "--delay", "100ms", *options]
    given = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=given)


def test_a_running_proxy(nats_server: NatsServer) -> None:
    async def run() -> None:
        with admin(nats_server) as (proxy, url):
            async with client(proxy, "idle"), client(proxy, HOSTILE) as busy:
                await busy.subscribe("orders.*")
                for _ in range(3):
                    await busy.publish("orders.new", b"x")
                await busy.flush()
                found = json.loads(top(url, "--json", "--order", "msgs_from", "-n", "1", "--subjects").stdout)
                (first,) = found["traffic"]["connections"]
                assert (first["name"], first["in_msgs"], first["out_msgs"]) == (HOSTILE, 3, 3)
                assert first["subjects"] == ["orders.*"]
                assert (found["traffic"]["total"], found["traffic"]["rates"]["in_msgs"]) == (2, 0)
                assert (found["proxy"]["accepted"], found["proxy"]["ready"]) == (2, True)
                done = top(url, "--order", "subs", COLUMNS="100")
                assert done.returncode == 0, done.stderr
                assert re.search(r"^ +2  .*w\\x1b\[31m", done.stdout, re.MULTILINE), done.stdout
                assert all(line.isprintable() for line in done.stdout.splitlines())
        done = top(url, "--once")
        assert (done.returncode, done.stderr.startswith("Error: nobody answers at")) == (2, True)

    asyncio.run(run())


class Terminal:
    """A terminal of 24 lines with the command in it."""

    def __init__(self, url: str) -> None:
        self._own, other = pty.openpty()
        command = [sys.executable, "-m", "natsproxy", "top", "--admin", url, "--delay", "200ms"]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env)
        os.close(other)
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._own, keys.encode())

    def until(self, pattern: str) -> None:
        """Read until a pattern comes that was not there before."""
        self.seen = ""
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, self.seen
            self.seen += os.read(self._own, 4096).decode(errors="replace")

    def end(self) -> int:
        """Return the exit code."""
        try:
            while os.read(self._own, 4096):
                pass
        except OSError:  # Linux says so when the other side is closed
            return self.process.wait(30)
        return self.process.wait(30)


def test_keys_in_a_terminal(nats_server: NatsServer) -> None:
    async def run() -> None:
        with admin(nats_server) as (proxy, url):
            async with client(proxy, "few"), client(proxy, "many") as many:
                for subject in ("a.one", "a.two"):
                    await many.subscribe(subject)
                await many.flush()
                with Terminal(url) as terminal:
                    terminal.until("many")
                    terminal.press("osu")
                    terminal.until("order by: su_")
                    terminal.press("bs\r")
                    terminal.until("(?s)many.*few")
                    terminal.press("s")
                    terminal.until(r"a\.one  a\.two")
                    terminal.press("n1\r")
                    terminal.until("1 of 2 connections")
                    terminal.press("?")
                    terminal.until("quit")
                    terminal.press("?d1x\r")
                    terminal.until("must be a duration")
                    terminal.press("q")
                    assert terminal.end() == 0

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_is_a_good_end(nats_server: NatsServer, number: int) -> None:
    with admin(nats_server) as (proxy, url), Terminal(url) as terminal:
        terminal.until("connections 0")
        proxy.kill()
        terminal.until("nobody answers at")  # it may come back
        terminal.process.send_signal(number)
        assert terminal.end() == 0
