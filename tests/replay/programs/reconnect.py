"""A connection lost in mid-program: the client reconnects, subscribes again and goes on."""

import asyncio
import os

import nats


async def main() -> None:
    back = asyncio.Event()

    async def reconnected() -> None:
        back.set()

    nc = await nats.connect(
        os.environ["NATS_URL"], name="lost", reconnected_cb=reconnected, reconnect_time_wait=0.05
    )
    sub = await nc.subscribe("news.*")
    await nc.publish("news.a", b"before")
    print((await sub.next_msg(timeout=5)).data.decode())
    assert nc._transport is not None
    nc._transport.close()  # type: ignore[no-untyped-call]  # the network is gone
    async with asyncio.timeout(10):
        await back.wait()
    for n in range(3):
        await nc.publish(f"news.{n}", b"after %d" % n)
        print((await sub.next_msg(timeout=5)).data.decode())
    await nc.close()


asyncio.run(main())
