"""A customer asks a service for prices, and tries again where no answer comes in time."""

import asyncio
import os

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError, TimeoutError

TRIES = 10


async def answer(msg: Msg) -> None:
    await msg.respond(b"%d" % (int(msg.data) ** 2))


async def price(nc: Client, number: int) -> int:
    for _ in range(TRIES):
        try:
            found = await nc.request("prices.get", str(number).encode(), timeout=0.5)
            return int(found.data)
        except TimeoutError:
            continue
        except NoRespondersError:
            await asyncio.sleep(0.5)
    raise RuntimeError(f"no price for {number}")


async def main() -> None:
    service = await nats.connect(os.environ["NATS_URL"], name="service")
    customer = await nats.connect(os.environ["NATS_URL"], name="customer")
    await service.subscribe("prices.get", cb=answer)
    for number in range(1, 6):
        found = await price(customer, number)
        assert found == number**2, f"{number}: {found}"
    await customer.close()
    await service.close()


if __name__ == "__main__":
    asyncio.run(main())
