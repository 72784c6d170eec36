"""One question to many: offers of whoever answers in time, then an order to the best of them."""

import asyncio
import json
import os
import uuid

import nats


async def main(url: str) -> None:
    nc = await nats.connect(url, name="scatter")
    for item in ("bolt", "nut"):
        inbox, question = nc.new_inbox(), {"rfq": str(uuid.uuid4()), "item": item}
        sub = await nc.subscribe(inbox)
        await nc.publish("offers.ask", json.dumps(question).encode(), reply=inbox)
        offers: list[dict[str, str]] = []
        while True:
            try:
                offer = json.loads((await sub.next_msg(timeout=1 if offers else 10)).data)
            except nats.errors.TimeoutError:
                break
            assert offer["rfq"] == question["rfq"]
            offers.append(offer)
        await sub.unsubscribe()
        best = min(offers, key=lambda offer: int(offer["price"]))
        print(item, sorted(offer["name"] for offer in offers), best["price"])
        order = {"rfq": question["rfq"], "offer": best["offer"], "order": str(uuid.uuid4())}
        await nc.publish(f"offers.order.{best['name']}", json.dumps(order).encode())
    await nc.flush()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
