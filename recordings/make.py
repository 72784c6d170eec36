"""Makes the golden captures anew, from a real nats-server: `python recordings/make.py`.

One capture per scenario and format version; a capture of an older version is never made again, it is what
shows that old files stay readable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
from nats.errors import NoRespondersError

from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.writer import write_text
from natsproxy.testing import NatsServer, TestProxy

HERE = Path(__file__).parent
VERSION = "v1.1"


async def core(url: str) -> None:
    """Publish and subscribe, wildcards, a queue group, headers."""
    nc = await nats.connect(url, name="core")
    everything = await nc.subscribe("orders.>")
    worker = await nc.subscribe("orders.new", queue="workers")
    for number in range(5):
        await nc.publish("orders.new", b"order %d" % number, headers={"Trace": f"t{number}"})
    for _ in range(5):
        await everything.next_msg(5)
        await worker.next_msg(5)
    await nc.drain()


async def requests(url: str) -> None:
    """A service and its client on two connections; nobody answers the last request."""
    service, client = await nats.connect(url, name="service"), await nats.connect(url, name="client")

    async def answer(message: object) -> None:
        await message.respond(b"42")  # type: ignore[attr-defined]

    await service.subscribe("quotes.*", cb=answer)
    await service.flush()
    for name in ("acme", "umbrella"):
        await client.request(f"quotes.{name}", b"?", timeout=5)
    with contextlib.suppress(NoRespondersError):
        await client.request("nobody.home", b"?", timeout=5)
    await client.close()
    await service.close()


async def jetstream(url: str) -> None:
    """A stream, a pull consumer that naks once and acks, a key-value bucket."""
    nc = await nats.connect(url, name="jetstream")
    js = nc.jetstream()
    await js.add_stream(name="DEMO", subjects=["demo.>"])
    for number in range(3):
        await js.publish("demo.item", b"item %d" % number)
    pull = await js.pull_subscribe("demo.>", "reader")
    first, *others = await pull.fetch(3, timeout=5)
    await first.nak()
    for message in [*others, *await pull.fetch(1, timeout=5)]:
        await message.ack_sync()
    bucket = await js.create_key_value(bucket="settings")
    await bucket.put("colour", b"teal")
    await bucket.get("colour")
    await nc.close()


async def denied(url: str) -> None:
    """A publish that a rule denies, one that it drops."""
    noted = asyncio.Event()

    async def note(error: Exception) -> None:
        noted.set()

    nc = await nats.connect(url, name="denied", error_cb=note)
    await nc.publish("secret.plan", b"x")
    await asyncio.wait_for(noted.wait(), 5)
    await nc.publish("telemetry", b"lost")
    await nc.flush()
    await nc.close()


SCENARIOS: list[Callable[[str], Awaitable[None]]] = [core, requests, jetstream, denied]
RULES = [
    {"name": "no-secrets", "kind": "deny", "subject": ["secret.>"]},
    {"name": "no-telemetry", "kind": "drop", "subject": ["telemetry"], "direction": "c2s"},
]


def main() -> None:
    """Make all that are not there."""
    for scenario in SCENARIOS:
        path = HERE / f"{scenario.__name__}-{VERSION}.ncap"
        path.unlink(missing_ok=True)
        with NatsServer(jetstream=True) as server:
            with TestProxy(server.url, record=path, rules=RULES if scenario is denied else None) as proxy:
                asyncio.run(scenario(proxy.url))  # type: ignore[arg-type]
        with (HERE / f"{scenario.__name__}.nats.txt").open("wb") as text:
            write_text(open_capture(path), text)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
