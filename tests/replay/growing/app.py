"""A program that grew after its cassette was recorded: with `more` it does more than then."""

import asyncio
import os
import sys

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg


async def main(more: bool) -> None:
    service = await nats.connect(os.environ["NATS_URL"], name="service")
    client = await nats.connect(os.environ["NATS_URL"], name="client")

    async def answer(msg: Msg) -> None:
        await msg.respond(b"hello " + msg.data)

    await service.subscribe("greet.*", cb=answer)
    await service.flush()
    await service.flush()  # the PING of a first one may overtake the SUBs
    print((await client.request("greet.one", b"1", timeout=5)).data.decode())
    if more:
        print((await client.request("greet.new", b"between", timeout=5)).data.decode())
        print((await client.request("greet.one", b"other", timeout=5)).data.decode())
    print((await client.request("greet.two", b"2", timeout=5)).data.decode())
    if more:
        await beyond(client)
    await client.close()
    await service.close()


async def beyond(client: Client) -> None:
    """Subscribe anew, use JetStream, and connect once more."""
    news = await client.subscribe("news.>")
    await client.publish("news.today", b"rain")
    print((await news.next_msg(timeout=5)).data.decode())
    await news.unsubscribe()
    js = client.jetstream()
    await js.add_stream(name="GROWN", subjects=["grown.>"])
    for n in range(3):
        print((await js.publish(f"grown.{n}", b"%d" % n)).seq)
    sub = await js.pull_subscribe("grown.>", durable="reader")
    for msg in await sub.fetch(3, timeout=5):
        print(msg.subject, msg.data.decode())
        await msg.ack_sync(timeout=5)
    third = await nats.connect(os.environ["NATS_URL"], name="third")
    inbox = await third.subscribe("third")
    await third.publish("third", b"time")
    print((await inbox.next_msg(timeout=5)).data.decode())
    await third.close()


asyncio.run(main("more" in sys.argv))
