"""An order service: UUIDs, times and trace headers everywhere, another service asked, a stream read back."""

import asyncio
import json
import os
import secrets
import uuid
from datetime import UTC, datetime

import nats


def traced(**headers: str) -> dict[str, str]:
    parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    return {"traceparent": parent, "X-Request-Id": str(uuid.uuid4()), **headers}


async def main(url: str) -> None:
    nc = await nats.connect(url, name="shop")
    js = nc.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    mine = []
    for qty in (1, 3, 2):
        order_id = str(uuid.uuid4())
        mine.append(order_id)
        order = {
            "id": order_id,
            "sku": f"sku-{qty}",
            "qty": qty,
            "lines": [{"line_id": uuid.uuid4().hex, "sku": f"sku-{qty}"}],
            "created_at": datetime.now(UTC).isoformat(),
        }
        headers = traced(**{"Nats-Msg-Id": order_id, "Content-Type": "application/json"})
        ack = await js.publish(f"orders.{order_id}.created", json.dumps(order).encode(), headers=headers)
        wanted = {"order_id": order_id, "qty": qty}
        answer = await nc.request("inventory.reserve", json.dumps(wanted).encode(), 5, headers=traced())
        stock = json.loads(answer.data)
        assert stock["order_id"] == order_id, "the answer belongs to another order"
        reserved = {"id": order_id, "reservation": stock["reservation"], "warehouse": stock["warehouse"]}
        await js.publish(f"orders.{order_id}.reserved", json.dumps(reserved).encode(), headers=traced())
        print(ack.seq, stock["warehouse"], stock["left"])
    sub = await js.pull_subscribe("orders.*.created", durable="billing", stream="ORDERS")
    for msg, order_id in zip(await sub.fetch(3, timeout=5), mine, strict=True):
        order = json.loads(msg.data)
        assert order["id"] == order_id == msg.subject.split(".")[1] == (msg.headers or {})["Nats-Msg-Id"]
        print("bill", order["qty"])
        await msg.ack_sync()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
