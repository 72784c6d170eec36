"""A micro service: endpoints, discovery ($SRV.PING, INFO, STATS), an error answer."""

import asyncio
import json
import os

import nats
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import ServiceConfig


async def main() -> None:
    server = await nats.connect(os.environ["NATS_URL"], name="provider")
    client = await nats.connect(os.environ["NATS_URL"], name="consumer")
    service = await add_service(server, ServiceConfig(name="calc", version="1.2.3", description="adds"))

    async def add(request: Request) -> None:
        numbers = json.loads(request.data)
        if not numbers:
            await request.respond_error("400", "nothing to add")
            return
        await request.respond(json.dumps(sum(numbers)).encode())

    group = service.add_group(name="math")
    await group.add_endpoint(name="add", handler=add)
    for _ in range(2):  # the first PING of nats-py overtakes a SUB that it has not written yet
        await server.flush()
    print((await client.request("math.add", b"[1, 2, 3]", timeout=5)).data)
    failed = await client.request("math.add", b"[]", timeout=5)
    print(failed.headers)
    found = json.loads((await client.request("$SRV.PING.calc", b"", timeout=5)).data)
    print(found["name"], found["version"], found["type"])
    told = json.loads((await client.request(f"$SRV.INFO.calc.{found['id']}", b"", timeout=5)).data)
    print(told["description"], [e["subject"] for e in told["endpoints"]])
    stats = json.loads((await client.request("$SRV.STATS.calc", b"", timeout=5)).data)
    print([e["num_requests"] for e in stats["endpoints"]])
    await service.stop()
    await client.close()
    await server.close()


asyncio.run(main())
