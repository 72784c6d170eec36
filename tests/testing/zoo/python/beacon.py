"""A service that reports its health every few milliseconds, and works beside that."""

import asyncio
import json
import os
import time
import uuid

import nats


async def main(url: str) -> None:
    nc = await nats.connect(url, name="beacon")
    instance, began = str(uuid.uuid4()), time.time()

    async def beacon() -> None:
        while True:
            health = {"instance": instance, "up": time.time() - began, "state": "ok"}
            await nc.publish(f"health.{instance}", json.dumps(health).encode())
            await asyncio.sleep(0.02)

    beating = asyncio.create_task(beacon())
    for n in range(3):
        body = {"order_id": str(uuid.uuid4()), "qty": n + 1}
        answer = json.loads((await nc.request("inventory.reserve", json.dumps(body).encode(), 5)).data)
        assert answer["order_id"] == body["order_id"]
        print(answer["warehouse"], answer["left"])
    beating.cancel()
    await nc.flush()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
