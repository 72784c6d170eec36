"""A shop that stores each order once: publishes with an id until the ack comes, then counts the stream."""

import asyncio
import os

import nats
from nats.errors import Error

ORDERS = 6


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="shop")
    js = nc.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.new"])
    for number in range(ORDERS):
        headers = {"Nats-Msg-Id": f"order-{number}"}
        for _ in range(6):
            try:
                await js.publish("orders.new", f"order {number}".encode(), timeout=1, headers=headers)
                break
            except Error:
                await asyncio.sleep(0.2)
        else:
            raise RuntimeError(f"order {number} is not stored")
    stored = (await js.stream_info("ORDERS")).state.messages
    assert stored == ORDERS, f"{stored} orders are stored"
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
