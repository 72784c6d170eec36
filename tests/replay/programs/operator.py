"""What an operator asks: account, streams and consumers, single messages, purges, pulls that do not wait."""

import asyncio
import json
import os

import nats
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="operator")
    js = nc.jetstream()
    await js.add_stream(name="LOG", subjects=["log.>"], allow_direct=True)
    for n in range(6):
        await js.publish(f"log.{n % 2}", b"line %d" % n, headers={"n": str(n)})
    config = StreamConfig(name="LOG", subjects=["log.>", "audit"], allow_direct=True, max_msgs=100)
    print((await js.update_stream(config)).config.subjects)
    print((await js.account_info()).streams, (await js.stream_info("LOG")).state.messages)
    print((await js.get_msg("LOG", 2)).data, (await js.get_last_msg("LOG", "log.0", direct=True)).data)
    await js.delete_msg("LOG", 3)
    for wrong in (js.get_msg("LOG", 3), js.stream_info("NOT"), js.consumer_info("LOG", "not")):
        try:
            await wrong
        except NotFoundError as error:
            print(error.err_code, error.description)

    await js.pull_subscribe("log.>", durable="puller")
    inbox = nc.new_inbox()
    pulled = await nc.subscribe(inbox)
    for batch in (3, 10, 10):  # whole, cut short, empty
        ask = {"batch": batch, "no_wait": True}
        await nc.publish("$JS.API.CONSUMER.MSG.NEXT.LOG.puller", json.dumps(ask).encode(), reply=inbox)
        got: list[bytes] = []
        while len(got) < batch:
            msg = await pulled.next_msg(timeout=5)
            if not msg.data:
                break  # the status that ends it differs between versions
            got.append(msg.data)
            await msg.ack()
        print(got)
    print([c.name for c in await js.consumers_info("LOG")])
    print(await js.purge_stream("LOG", subject="log.1"), (await js.stream_info("LOG")).state.messages)
    await js.delete_consumer("LOG", "puller")
    await js.delete_stream("LOG")
    await nc.close()


asyncio.run(main())
