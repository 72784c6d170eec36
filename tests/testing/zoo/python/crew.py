"""Two workers of one pull consumer, a fast one and a slow one: short fetches, results, acks."""

import asyncio
import json
import os
import random

import nats
from nats.js.api import RetentionPolicy

JOBS = 12


async def _work(url: str, name: str, batch: int, pace: float, done: set[int]) -> None:
    nc = await nats.connect(url, name=f"crew-{name}")
    js = nc.jetstream()
    sub = await js.pull_subscribe("crew.jobs", durable="crew", stream="CREW")
    while len(done) < JOBS:
        try:
            jobs = await sub.fetch(batch, timeout=0.3)
        except TimeoutError:
            continue
        for msg in jobs:
            job = json.loads(msg.data)
            await asyncio.sleep(random.uniform(0, pace))
            await js.publish("done.jobs", json.dumps({"job": job["n"], "square": job["n"] ** 2}).encode())
            await msg.ack()
            done.add(job["n"])
    await nc.close()


async def main(url: str) -> None:
    nc = await nats.connect(url, name="crew")
    js = nc.jetstream()
    await js.add_stream(name="CREW", subjects=["crew.jobs"], retention=RetentionPolicy.WORK_QUEUE)
    await js.add_stream(name="DONE", subjects=["done.jobs"])
    done: set[int] = set()
    workers = [
        asyncio.create_task(_work(url, "fast", 1, 0.005, done)),
        asyncio.create_task(_work(url, "slow", 3, 0.03, done)),
    ]
    for n in range(JOBS):
        await js.publish("crew.jobs", json.dumps({"n": n}).encode())
        await asyncio.sleep(random.uniform(0, 0.01))
    await asyncio.gather(*workers)
    print(sorted(done))
    print((await js.stream_info("DONE")).state.messages)
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
