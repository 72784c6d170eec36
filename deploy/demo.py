"""`make demo`: natsproxy before a real nats-server, act by act, on this machine.

Each act is a row of `ACTS`: a title and a function.  Everything runs on free ports of the loopback and is
stopped at the end; what is recorded stays in `demo-output/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from natsproxy.testing import NatsServer

OUTPUT = Path("demo-output")
CAPTURE = OUTPUT / "demo.ncap"
REPORT = OUTPUT / "report.html"
RULES = """\
[[rules]]
name = "no-secrets"
kind = "deny"
subject = ["secret.>"]

[[rules]]
name = "eu-goes-to-region"
kind = "rewrite"
from = "orders.eu.*"
to = "region.eu.orders.$1"

[[rules]]
name = "slow-quotes"
kind = "latency"
subject = ["quotes.*"]
direction = "c2s"
delay = "150ms"

[[rules]]
name = "lose-every-third"
kind = "drop"
subject = ["telemetry"]
direction = "c2s"
every = 3
"""
COLOUR = sys.stdout.isatty()


def say(text: str, code: str = "") -> None:
    """Print a line, in colour on a terminal."""
    print(f"\033[{code}m{text}\033[0m" if COLOUR and code else text, flush=True)


def command(*args: str) -> list[str]:
    """Return a natsproxy command line."""
    return [sys.executable, "-m", "natsproxy", *args]


def natsproxy(*args: str) -> None:
    """Run a natsproxy command in the open; the demo ends if it fails."""
    say(f"$ natsproxy {' '.join(args)}", "1")
    code = subprocess.run(command(*args), check=False).returncode
    if code:
        raise SystemExit(f"natsproxy {args[0]} ended with exit code {code}")


@contextlib.contextmanager
def running(*args: str) -> Iterator[str]:
    """Run a natsproxy command that listens; yield its URL; stop it with SIGTERM."""
    say(f"$ natsproxy {' '.join(args)}", "1")
    process = subprocess.Popen(command(*args), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    rest: threading.Thread | None = None
    try:
        for line in process.stderr:
            found = re.search(r"(127\.0\.0\.1:\d+)", line)
            if found and ("listening" in line or "playing" in line):
                rest = threading.Thread(target=process.stderr.read, daemon=True)
                rest.start()  # a pipe that nobody reads would stop the command
                yield f"nats://{found[1]}"
                break
        else:
            raise SystemExit("the command did not start")
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        if rest is not None:
            rest.join()
        process.stderr.close()


async def conversation(url: str) -> None:
    """Use core NATS, a queue group, request/reply, headers, no responders, JetStream, key-value."""
    nc = await nats.connect(url, name="demo")
    received: list[str] = []

    async def receive(message: Any) -> None:
        received.append(message.subject)

    async def quote(message: Any) -> None:
        await message.respond(b"42.17 EUR")

    await nc.subscribe("orders.*", cb=receive)
    for worker in range(2):
        await nc.subscribe("work", queue="workers", cb=receive if worker else quote)
    await nc.subscribe("quotes.get", cb=quote)
    for number in range(5):
        await nc.publish("orders.new", b'{"order": %d}' % number, headers={"Trace": f"t{number}"})
    reply = await nc.request("quotes.get", b"ACME", timeout=2)
    assert reply.data == b"42.17 EUR"
    with contextlib.suppress(NoRespondersError):
        await nc.request("nobody.home", b"?", timeout=1)
    js = nc.jetstream()
    await js.add_stream(name="DEMO", subjects=["demo.>"])
    for number in range(3):
        await js.publish("demo.item", b"item %d" % number)
    pull = await js.pull_subscribe("demo.>", "reader")
    first, *others = await pull.fetch(3, timeout=2)
    await first.nak()
    for message in [*others, *await pull.fetch(1, timeout=2)]:
        await message.ack_sync()
    kv = await js.create_key_value(bucket="settings")
    await kv.put("colour", b"teal")
    entry = await kv.get("colour")
    assert entry.value == b"teal"
    await nc.flush()
    await nc.drain()
    assert received.count("orders.new") == 5


def act_record(server: NatsServer) -> None:
    """Record a conversation and look at it."""
    with running(
        "run",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        server.url,
        "--record",
        str(CAPTURE),
        "--log-format",
        "json",
    ) as url:
        asyncio.run(conversation(url))
        say("the client worked as it does without a proxy; the recorded frames:", "2")
    natsproxy("capture", "cat", str(CAPTURE), "--op", "PUB", "--op", "HPUB", "--op", "HMSG")
    natsproxy("capture", "info", str(CAPTURE))


def act_replay(server: NatsServer) -> None:
    """Play the recorded clients to a fresh server."""
    with NatsServer(jetstream=True) as fresh:
        natsproxy("replay", "to-server", str(CAPTURE), "--to", fresh.url, "--speed", "max")


def act_rules(server: NatsServer) -> None:
    """Deny, rewrite, delay and drop, by four rules."""
    rules = OUTPUT / "rules.toml"
    rules.write_text(RULES)
    natsproxy("rules", "check", str(rules))
    natsproxy("rules", "explain", str(rules), "--op", "PUB", "--subject", "orders.eu.7")
    with running(
        "run",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        server.url,
        "--rules",
        str(rules),
        "--seed",
        "7",
        "--log-format",
        "json",
    ) as url:
        asyncio.run(faults(url, server.url))


async def faults(url: str, direct: str) -> None:
    """Show the effect of each of the four rules."""
    errors: asyncio.Queue[str] = asyncio.Queue()

    async def note(error: Exception) -> None:
        errors.put_nowait(str(error))

    nc = await nats.connect(url, error_cb=note)
    other = await nats.connect(direct)
    inner = await other.subscribe("region.>")
    quotes = await other.subscribe("quotes.get")
    telemetry = await other.subscribe("telemetry")
    for _ in range(2):  # the first PING of nats-py overtakes a SUB that it has not written yet
        await other.flush()
    await nc.publish("secret.plan", b"x")
    say(f"denied:    {await asyncio.wait_for(errors.get(), 5)}", "32")
    await nc.publish("orders.eu.7", b"x")
    say(f"rewritten: orders.eu.7 arrives as {(await inner.next_msg(5)).subject}", "32")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await nc.publish("quotes.get", b"x")
    await quotes.next_msg(5)
    say(f"delayed:   quotes.get took {(loop.time() - began) * 1000:.0f} ms", "32")
    for _ in range(6):
        await nc.publish("telemetry", b"x")
    count = 0
    with contextlib.suppress(NatsTimeout):
        while True:
            await telemetry.next_msg(0.5)
            count += 1
    say(f"dropped:   {count} of 6 telemetry messages arrived", "32")
    await nc.close()
    await other.close()


def act_cassette(server: NatsServer) -> None:
    """The recorded conversation again, with no server at all."""
    with running("replay", "to-client", str(CAPTURE), "--listen", "127.0.0.1:0") as url:
        asyncio.run(conversation(url))
        say("the same program ran against the recording; no server was there", "32")


def act_analyze(server: NatsServer) -> None:
    """The tables of the demo's own capture, its request latencies, and a page that draws them."""
    natsproxy("analyze", str(CAPTURE), "--out", str(OUTPUT / "tables"), "--report", str(REPORT))


def act_page(server: NatsServer) -> None:
    """Live traffic in a browser, and a fault that bends it."""
    admin = f"127.0.0.1:{free_port()}"
    with running(
        "run",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        server.url,
        "--admin",
        admin,
        "--admin-captures",
        str(OUTPUT / "captures"),
        "--log-format",
        "json",
    ) as url:
        if sys.stdin.isatty() and sys.stdout.isatty():
            say(f"\n  http://{admin}/\n", "1;36")
            say("Open it.  Choose a frame of quotes.get, then “Fault here…” and “Start the fault”: the next")
            say("quotes come late, there and here.  Ctrl-C ends the demo.\n")
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(shop(url))
        else:  # nobody looks
            fault = ("latency", "--subject", "quotes.get", "--delay", "300ms", "--for", "30s")
            natsproxy("ctl", "fault", *fault, "--admin", f"http://{admin}")
            asyncio.run(shop(url, slow=1))


def free_port() -> int:
    """Return a port of the loopback that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


async def shop(url: str, slow: int = 0) -> None:
    """Ask for quotes and place orders, a few a second; say which quotes come late.

    slow: end after so many late ones, 0: go on.
    """
    web, pricing = await nats.connect(url, name="web-shop"), await nats.connect(url, name="pricing")
    worker = await nats.connect(url, name="order-worker")

    async def quote(message: Any) -> None:
        await message.respond(b'{"price": 42.17, "currency": "EUR"}')

    await pricing.subscribe("quotes.*", queue="pricing", cb=quote)
    for _ in range(2):
        await pricing.flush()
    js = web.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    orders = await worker.jetstream().pull_subscribe("orders.>", "worker")
    loop, number, late = asyncio.get_running_loop(), 0, 0
    while not slow or late < slow:
        number += 1
        began = loop.time()
        with contextlib.suppress(NatsTimeout, NoRespondersError):
            await web.request("quotes.get", b'{"symbol": "ACME", "number": %d}' % number, timeout=2)
        took = loop.time() - began
        if took > 0.1:
            late += 1
            say(f"quotes.get took {took * 1000:.0f} ms", "33")
        with contextlib.suppress(nats.errors.Error):
            await js.publish("orders.new", b'{"order": %d}' % number, timeout=2)
            for message in await orders.fetch(1, timeout=1):
                await message.ack()
        await asyncio.sleep(0.3)
    for nc in (web, pricing, worker):
        await nc.close()


ACTS: list[tuple[str, Callable[[NatsServer], None]]] = [
    ("A conversation through the proxy, recorded", act_record),
    ("Its clients, played to a fresh server", act_replay),
    ("Rules: deny, rewrite, delay, drop", act_rules),
    ("The server, played from the recording", act_cassette),
    ("Tables on Spark", act_analyze),
    ("The page", act_page),
]


def main() -> None:
    """Play the acts."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    os.environ.setdefault("COLUMNS", "120")
    with NatsServer(jetstream=True) as server:
        for number, (title, act) in enumerate(ACTS, 1):
            say(f"\n== Act {number}: {title} ==\n", "1;36")
            act(server)
    say(f"\nThe capture is {CAPTURE}, its report {REPORT}.  Three commands to try:", "1;36")
    say(f"  .venv/bin/natsproxy capture cat {CAPTURE} --subject 'demo.>'")
    say(f"  .venv/bin/natsproxy capture cat {CAPTURE} --json --op HMSG")
    say(f"  .venv/bin/natsproxy rules explain {OUTPUT / 'rules.toml'} --subject secret.plan")


if __name__ == "__main__":
    main()
