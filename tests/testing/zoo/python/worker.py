"""A worker that polls: short fetches, most of them empty, as jobs arrive whenever they do."""

import asyncio
import json
import os
import time
import uuid

import nats

JOBS = 5


async def main(url: str) -> None:
    nc = await nats.connect(url, name="worker")
    js = nc.jetstream()
    await js.add_stream(name="JOBS", subjects=["jobs.new"])
    sub = await js.pull_subscribe("jobs.new", durable="workers", stream="JOBS")
    instance, done = str(uuid.uuid4()), 0
    while done < JOBS:
        try:
            jobs = await sub.fetch(10, timeout=0.15)
        except TimeoutError:
            continue
        for msg in jobs:
            began = time.perf_counter()
            job = json.loads(msg.data)
            result = {
                "job": job["id"],
                "worker": instance,
                "square": job["n"] ** 2,
                "finished": time.time(),
                "took_ms": (time.perf_counter() - began) * 1000,
            }
            await nc.publish("jobs.done", json.dumps(result).encode())
            await msg.ack()
            done += 1
            print(job["n"], result["square"])
    await nc.flush()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
