"""An ordered consumer that loses its consumer on the way and starts again where it was."""

import asyncio
import json
import os
import uuid
from collections.abc import Awaitable, Callable

import nats
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError


async def retried(ask: Callable[[], Awaitable[str]]) -> str:
    """Ask again while the library replaces the consumer: it does so, too, when heartbeats come late."""
    for _ in range(20):
        try:
            return await ask()
        except NotFoundError:
            await asyncio.sleep(0.1)
    return await ask()


async def name_of(sub: JetStreamContext.PushSubscription) -> str:
    return (await sub.consumer_info()).name


async def deleted(js: JetStreamContext, sub: JetStreamContext.PushSubscription) -> str:
    name = await name_of(sub)
    await js.delete_consumer("LEDGER", name)
    return name


async def main(url: str) -> None:
    nc = await nats.connect(url, name="ordered")
    js = nc.jetstream()
    await js.add_stream(name="LEDGER", subjects=["ledger.*"])
    entries = []
    for n in range(6):
        entries.append({"entry": str(uuid.uuid4()), "amount": n * 10})
        await js.publish(f"ledger.{n % 2}", json.dumps(entries[-1]).encode())
    sub = await js.subscribe("ledger.*", ordered_consumer=True, idle_heartbeat=0.5)
    for n in range(6):
        msg = await sub.next_msg(timeout=5)
        assert json.loads(msg.data) == entries[n]
        print(msg.subject, msg.metadata.sequence.stream)
    before = await retried(lambda: deleted(js, sub))  # as a restarted server does with one in memory
    entries.append({"entry": str(uuid.uuid4()), "amount": 999})
    await js.publish("ledger.0", json.dumps(entries[-1]).encode())
    msg = await sub.next_msg(timeout=5)
    assert json.loads(msg.data) == entries[-1]
    print(msg.subject, msg.metadata.sequence.stream, await retried(lambda: name_of(sub)) != before)
    await sub.unsubscribe()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
