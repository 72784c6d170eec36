"""Create, change and delete a stream."""

import asyncio
import os

import nats
from nats.js.api import RetentionPolicy, StreamConfig


async def main() -> None:
    client = await nats.connect(os.environ["NATS_URL"], name="streams")
    js = client.jetstream()
    config = StreamConfig(name="ORDERS", subjects=["orders.>"], max_msgs=10)
    info = await js.add_stream(config)
    print(info.config.name, info.config.subjects)
    await js.update_stream(StreamConfig(name="ORDERS", subjects=["orders.>", "carts.>"], max_msgs=20))
    await js.add_stream(name="JOBS", subjects=["jobs.*"], retention=RetentionPolicy.WORK_QUEUE)
    ack = await js.publish("carts.1", b"x")
    print(ack.stream, ack.seq)
    print((await js.stream_info("ORDERS")).state.messages)
    print((await js.get_msg("ORDERS", 1)).data)
    await js.purge_stream("ORDERS")
    await js.delete_stream("ORDERS")
    await client.close()


asyncio.run(main())
