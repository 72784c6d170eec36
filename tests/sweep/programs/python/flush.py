"""A dispatcher that checks its link, then waits for an order, with `--deadline` not for ever."""

import asyncio
import os
import sys

import nats
from nats.errors import TimeoutError


async def main(patience: float | None) -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="dispatcher")
    orders = await nc.subscribe("orders.new")
    for _ in range(2):
        try:
            await nc.flush(timeout=0.4)  # type: ignore[arg-type] # it takes fractions
        except TimeoutError:
            print("the link is slow")
    await nc.publish("orders.new", b"order 1")
    order = await orders.next_msg(timeout=patience)
    print(order.data.decode())
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(5.0 if "--deadline" in sys.argv else None))
