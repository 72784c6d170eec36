"""A shop that never reconnects and tries again what fails: it sells by JetStream, and asks for prices."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats
from nats.aio.msg import Msg
from nats.errors import NoRespondersError, TimeoutError
from nats.js.api import ConsumerConfig
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError

ORDERS = [b"order %d " % number + b"x" * 20_000 for number in range(3)]
T = TypeVar("T")


async def again(action: Callable[[], Awaitable[T]]) -> T:
    for _ in range(20):
        try:
            return await action()
        except (TimeoutError, NoRespondersError, NoStreamResponseError, ServiceUnavailableError):
            await asyncio.sleep(0.1)
    raise RuntimeError("it never succeeds")


async def answer(msg: Msg) -> None:
    await msg.respond(msg.data[:10])


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="shop", allow_reconnect=False)
    js = nc.jetstream(timeout=1)
    await again(lambda: js.add_stream(name="SHOP", subjects=["shop.orders.*"]))
    await nc.subscribe("shop.price", cb=answer)
    soon = ConsumerConfig(ack_wait=2)
    orders = await again(lambda: js.pull_subscribe("shop.orders.*", "till", config=soon))
    for number, order in enumerate(ORDERS):
        headers = {"Nats-Msg-Id": str(number)}
        await again(lambda: js.publish(f"shop.orders.{number}", order, headers=headers))  # noqa: B023
    sold: dict[str, bytes] = {}
    while len(sold) < len(ORDERS):
        (came,) = await again(lambda: orders.fetch(1, timeout=1))
        sold[came.subject] = came.data
        await again(lambda: came.ack_sync(timeout=1))  # noqa: B023
    if sorted(sold.values()) != ORDERS:
        sys.exit("an order has changed")
    for order in ORDERS:
        price = await again(lambda: nc.request("shop.price", order, timeout=1))  # noqa: B023
        if price.data != order[:10]:
            sys.exit(f"a wrong price: {price.data!r}")
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
