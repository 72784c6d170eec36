"""Pull, push and ordered consumers."""

import asyncio
import os

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy


async def main() -> None:
    client = await nats.connect(os.environ["NATS_URL"], name="consumers")
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for n in range(4):
        await js.publish(f"orders.{n}", b"%d" % n)
    pull = await js.pull_subscribe("orders.>", durable="puller")
    for msg in await pull.fetch(4, timeout=2):
        print(msg.subject, msg.data)
        await msg.ack_sync()
    push = await js.subscribe("orders.>", durable="pusher", manual_ack=True)
    for _ in range(4):
        msg = await push.next_msg(2)
        print(msg.data)
        await msg.ack_sync()
    await push.unsubscribe()
    info = await js.add_consumer(
        "ORDERS",
        ConsumerConfig(
            durable_name="late",
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.LAST,
            filter_subject="orders.3",
        ),
    )
    print(info.name, info.num_pending)
    print((await js.consumer_info("ORDERS", "puller")).ack_floor.stream_seq)
    await js.delete_consumer("ORDERS", "late")
    await client.close()


asyncio.run(main())
