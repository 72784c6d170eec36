"""Request and reply over two connections, in parallel, with one request that nobody answers."""

import asyncio
import os

import nats
from nats.aio.msg import Msg
from nats.errors import NoRespondersError


async def main() -> None:
    service = await nats.connect(os.environ["NATS_URL"], name="service")
    client = await nats.connect(os.environ["NATS_URL"], name="client")

    async def answer(msg: Msg) -> None:
        await msg.respond(b"hello " + msg.data)

    await service.subscribe("greet.*", queue="greeters", cb=answer)
    for _ in range(2):  # the first PING of nats-py overtakes a SUB that it has not written yet
        await service.flush()
    for n in range(5):
        print((await client.request(f"greet.{n}", b"world %d" % n, timeout=5)).data.decode())
    answers = await asyncio.gather(*(client.request("greet.all", b"%d" % n, timeout=5) for n in range(20)))
    print([a.data.decode() for a in answers])
    try:
        await client.request("nobody.there", b"?", timeout=5)
    except NoRespondersError:
        print("nobody there")
    await client.close()
    await service.close()


asyncio.run(main())
