"""Core publish and subscribe: literal, wildcard, headers, flush, unsubscribe."""

import asyncio
import os

import nats


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="core")
    literal = await nc.subscribe("orders.new")
    wild = await nc.subscribe("orders.>")
    for n in range(5):
        await nc.publish("orders.new", b"order %d" % n, headers={"n": str(n), "kind": "test"})
        await nc.publish(f"orders.eu.{n}", b"eu %d" % n)
    await nc.flush()
    for _ in range(5):
        msg = await literal.next_msg(timeout=5)
        print(msg.subject, msg.data.decode(), sorted((msg.headers or {}).items()))
    got = sorted([(m.subject, m.data.decode()) for m in [await wild.next_msg(timeout=5) for _ in range(10)]])
    print(got)
    await wild.unsubscribe()
    await nc.publish("orders.new", b"last")
    print((await literal.next_msg(timeout=5)).data.decode())
    await nc.drain()


asyncio.run(main())
