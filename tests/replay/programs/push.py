"""JetStream push: a durable with manual acks, an ephemeral one, a redelivery after ack_wait."""

import asyncio
import os

import nats
from nats.js.api import AckPolicy, ConsumerConfig


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="push")
    js = nc.jetstream()
    await js.add_stream(name="EVENTS", subjects=["events.*"])
    for n in range(6):
        await js.publish(f"events.{n % 3}", b"event %d" % n)
    durable = await js.subscribe(
        "events.*",
        durable="dur",
        manual_ack=True,
        config=ConsumerConfig(ack_wait=1, ack_policy=AckPolicy.EXPLICIT),
    )
    for n in range(6):
        msg = await durable.next_msg(timeout=5)
        print(msg.subject, msg.data.decode(), msg.metadata.num_delivered)
        if n != 2:
            await msg.ack()
    again = await durable.next_msg(timeout=5)
    print(again.data.decode(), again.metadata.num_delivered)
    await again.ack_sync()
    ephemeral = await js.subscribe("events.1")
    got = [await ephemeral.next_msg(timeout=5) for _ in range(2)]
    print([m.data.decode() for m in got])
    for msg in got:
        await msg.ack()
    await js.publish("events.1", b"live")
    live = await ephemeral.next_msg(timeout=5)
    print(live.data.decode())
    await ephemeral.unsubscribe()
    await js.delete_consumer("EVENTS", "dur")
    await js.delete_stream("EVENTS")
    await nc.close()


asyncio.run(main())
