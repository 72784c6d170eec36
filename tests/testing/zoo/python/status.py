"""A client that polls: the state of a job, a key until it exists, and a monitor beside it all."""

import asyncio
import json
import os
import uuid

import nats
from nats.js.errors import KeyNotFoundError


async def main(url: str) -> None:
    nc = await nats.connect(url, name="status")
    js = nc.jetstream()
    progress = await js.create_key_value(bucket="progress")

    async def monitor() -> None:
        while True:
            info = await js.stream_info("KV_progress")
            assert info.state.messages >= 0
            await asyncio.sleep(0.03)

    watching = asyncio.create_task(monitor())
    order = {"document": "report", "client_ref": str(uuid.uuid4())}
    answer = json.loads((await nc.request("render.submit", json.dumps(order).encode(), 5)).data)
    assert answer["client_ref"] == order["client_ref"]
    job = answer["job"]
    while True:
        state = json.loads((await nc.request(f"render.status.{job}", b"", 5)).data)
        if state["state"] == "done":
            break
        await asyncio.sleep(0.02)
    assert state["url"].endswith(job)
    print(state["state"], state["pages"])
    while True:
        try:
            entry = await progress.get("report")
            break
        except KeyNotFoundError:
            await asyncio.sleep(0.02)
    print((entry.value or b"").decode(), entry.revision)
    watching.cancel()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
