"""An ordered consumer with heartbeats and flow control over a few megabytes."""

import asyncio
import hashlib
import os

import nats


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="ordered")
    js = nc.jetstream()
    await js.add_stream(name="BIG", subjects=["big"])
    for n in range(60):
        await js.publish("big", bytes([n]) * 100_000)
    sub = await js.subscribe("big", ordered_consumer=True, flow_control=True, idle_heartbeat=0.5)
    digest = hashlib.sha256()
    for _ in range(60):
        msg = await sub.next_msg(timeout=5)
        digest.update(msg.data)
    print(digest.hexdigest())
    await asyncio.sleep(1.2)
    await js.publish("big", b"the end")
    print((await sub.next_msg(timeout=5)).data.decode())
    await sub.unsubscribe()
    await nc.close()


asyncio.run(main())
