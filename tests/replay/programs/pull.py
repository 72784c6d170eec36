"""JetStream with a pull consumer: publish acks, fetch, ack, nak and redelivery, an empty fetch."""

import asyncio
import os

import nats
from nats.errors import TimeoutError as NatsTimeout


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="pull")
    js = nc.jetstream()
    await js.add_stream(name="WORK", subjects=["work.>"])
    for n in range(8):
        ack = await js.publish(f"work.{n % 2}", b"job %d" % n, headers={"Nats-Msg-Id": f"job-{n}"})
        print(ack.stream, ack.seq)
    sub = await js.pull_subscribe("work.>", durable="worker")
    for msg in await sub.fetch(5, timeout=5):
        print(msg.data.decode(), msg.metadata.sequence.stream)
        if msg.data == b"job 3":
            await msg.nak()
        else:
            await msg.ack_sync(timeout=5)
    for msg in await sub.fetch(4, timeout=5):
        print(msg.data.decode(), msg.metadata.num_delivered)
        await msg.ack()
    try:
        await sub.fetch(1, timeout=0.5)
    except NatsTimeout:
        print("empty")
    info = await js.consumer_info("WORK", "worker")
    print(info.num_ack_pending, info.delivered.stream_seq)
    await nc.close()


asyncio.run(main())
