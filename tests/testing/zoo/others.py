"""The rest of the system: the services that the programs of the zoo talk to while they are recorded.

They answer in a while, they appear when they like, and they change things on their own.  None of them runs
when a capture is played.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError

Handler = Callable[[Msg], Awaitable[None]]


async def _pause(longest: float) -> None:
    await asyncio.sleep(random.uniform(0, longest))


def _now() -> str:
    return datetime.now(UTC).isoformat()


async def _respond(msg: Msg, answer: dict[str, Any]) -> None:
    await msg.respond(json.dumps(answer).encode())


async def _inventory(nc: Client) -> None:
    async def reserve(msg: Msg) -> None:
        asked = json.loads(msg.data)
        await _pause(0.02)
        answer = {
            "order_id": asked["order_id"],
            "reservation": str(uuid.uuid4()),
            "warehouse": "north" if asked["qty"] < 3 else "south",
            "left": 10 - asked["qty"],
            "until": _now(),
        }
        await _respond(msg, answer)

    await nc.subscribe("inventory.reserve", cb=reserve)


async def _jobs(nc: Client, stream: str, subject: str) -> None:
    """Publish jobs once the stream is there, at times that no one can foresee."""
    js = nc.jetstream()
    while True:
        try:
            await js.stream_info(stream)
            break
        except (JetStreamError, TimeoutError):
            await asyncio.sleep(0.02)
    for n in range(5):
        await asyncio.sleep(random.uniform(0, 0.35))
        job = {"id": str(uuid.uuid4()), "n": n, "queued": _now()}
        await js.publish(subject, json.dumps(job).encode(), headers={"Nats-Msg-Id": job["id"]})


async def _render(nc: Client, bucket: str, prefix: str) -> None:
    jobs: dict[str, int] = {}

    async def submit(msg: Msg) -> None:
        job = str(uuid.uuid4())
        jobs[job] = random.randint(1, 6)
        await _respond(msg, {"job": job, "client_ref": json.loads(msg.data)["client_ref"]})

    async def status(msg: Msg) -> None:
        job = msg.subject.rsplit(".", 1)[1]
        jobs[job] -= 1
        if jobs[job] > 0:
            await _respond(msg, {"state": "pending", "job": job, "asked": _now()})
            return
        await _respond(msg, {"state": "done", "job": job, "pages": 12, "url": f"https://files/{job}"})
        await asyncio.sleep(0.1)
        await (await nc.jetstream().key_value(bucket)).put("report", b"12 pages")

    await nc.subscribe(f"{prefix}.submit", cb=submit)
    await nc.subscribe(f"{prefix}.status.*", cb=status)


async def _operator(nc: Client, bucket: str) -> None:
    """Change settings once the service has said that it is ready."""

    async def ready(msg: Msg) -> None:
        kv = await nc.jetstream().key_value(bucket)
        for key in ("limit", "region", "limit", "stop"):
            await _pause(0.1)
            await kv.put(key, f"{key} of the operator".encode())

    await nc.subscribe(f"$KV.{bucket}.ready", cb=ready)


async def _offers(nc: Client, prefix: str) -> None:
    for name, price in (("acme", 12), ("best", 9), ("cheap", 7)):

        async def offer(msg: Msg, name: str = name, price: int = price) -> None:
            await _pause(0.05)
            rfq = json.loads(msg.data)["rfq"]
            await _respond(msg, {"rfq": rfq, "name": name, "price": price, "offer": str(uuid.uuid4())})

        await nc.subscribe(f"{prefix}.ask", cb=offer)


async def _tasks(nc: Client) -> None:
    async def ready(msg: Msg) -> None:
        for n in range(8):
            await _pause(0.01)
            await nc.publish("tasks.run", json.dumps({"id": str(uuid.uuid4()), "n": n}).encode())

    await nc.subscribe("tasks.ready", cb=ready)


async def _quotes(nc: Client) -> None:
    calls = 0

    async def get(msg: Msg) -> None:
        await _respond(msg, {"request": json.loads(msg.data)["request"], "price": 41})

    async def slow(msg: Msg) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:  # the first one is never answered
            await _respond(msg, {"request": json.loads(msg.data)["request"], "price": 17})

    async def wanted(msg: Msg) -> None:
        await asyncio.sleep(0.1)
        await nc.subscribe("quotes.get", cb=get)

    await nc.subscribe("quotes.wanted", cb=wanted)
    await nc.subscribe("quotes.slow", cb=slow)


async def serve(url: str) -> None:
    """Run them all until cancelled."""
    nc = await nats.connect(url, name="others")
    await _inventory(nc)
    await _render(nc, "progress", "render")
    for bucket in ("settings", "flags", "depots"):
        await _operator(nc, bucket)
    await _offers(nc, "offers")
    await _tasks(nc)
    await _quotes(nc)
    for _ in range(2):  # the first PING of nats-py overtakes a SUB that it has not written yet
        await nc.flush()
    print("ready", flush=True)
    await asyncio.gather(_jobs(nc, "JOBS", "jobs.new"), _jobs(nc, "WORK", "work.new"))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(os.environ["NATS_URL"]))
