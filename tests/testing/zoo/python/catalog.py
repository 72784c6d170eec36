"""Two instances of a service, found by discovery, asked through their endpoints, watched by statistics."""

import asyncio
import json
import os
import uuid
from datetime import UTC, datetime

import nats
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import ServiceConfig


async def main(url: str) -> None:
    client = await nats.connect(url, name="catalog-client")

    async def price(request: Request) -> None:
        asked = json.loads(request.data)
        if "sku" not in asked:
            await request.respond_error("400", "no sku")
            return
        quote = {"quote": str(uuid.uuid4()), "asked": asked["id"], "at": datetime.now(UTC).isoformat()}
        await request.respond(json.dumps({**quote, "price": len(asked["sku"])}).encode())

    services = []
    for _ in range(2):
        nc = await nats.connect(url, name="catalog")
        service = await add_service(nc, ServiceConfig(name="catalog", version="2.0.1", description="prices"))
        await service.add_group(name="catalog").add_endpoint(name="price", handler=price)
        await nc.flush()
        await nc.flush()  # the first PING may overtake a SUB that is not written yet
        services.append((nc, service))

    inbox = client.new_inbox()
    sub = await client.subscribe(inbox)
    await client.publish("$SRV.PING.catalog", b"", reply=inbox)
    found = [json.loads((await sub.next_msg(timeout=5)).data) for _ in services]
    print([one["version"] for one in found], len({one["id"] for one in found}))
    for one in found:
        info = json.loads((await client.request(f"$SRV.INFO.catalog.{one['id']}", b"", 5)).data)
        assert info["id"] == one["id"]
        print(info["description"], [endpoint["subject"] for endpoint in info["endpoints"]])
    for sku in ("bolt", "washer"):
        asked = {"id": str(uuid.uuid4()), "sku": sku}
        quote = json.loads((await client.request("catalog.price", json.dumps(asked).encode(), 5)).data)
        assert quote["asked"] == asked["id"]
        print(sku, quote["price"])
    failed = await client.request("catalog.price", b"{}", 5)
    print((failed.headers or {})["Nats-Service-Error-Code"])
    for nc, service in services:
        await service.stop()
        await nc.close()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
