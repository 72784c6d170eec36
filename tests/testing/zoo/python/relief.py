"""A worker dies with a job in its hands; the server gives it to the other one after ack_wait."""

import asyncio
import json
import os
import random

import nats
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

JOBS = 8


async def main(url: str) -> None:
    nc = await nats.connect(url, name="relief")
    js = nc.jetstream()
    await js.add_stream(name="RELIEF", subjects=["relief.jobs"])
    await js.add_consumer("RELIEF", ConsumerConfig(durable_name="shift", ack_wait=1))
    done: set[int] = set()

    async def work(name: str, dies_after: int) -> None:
        own = await nats.connect(url, name=name)
        sub = await own.jetstream().pull_subscribe_bind(durable="shift", stream="RELIEF")
        taken = 0
        while len(done) < JOBS:
            try:
                msgs: list[Msg] = await sub.fetch(1, timeout=0.5)
            except TimeoutError:
                continue
            taken += 1
            if taken > dies_after:
                break
            job = json.loads(msgs[0].data)
            await asyncio.sleep(random.uniform(0, 0.01))
            await own.publish("relief.done", json.dumps({"job": job["n"]}).encode())
            await msgs[0].ack()
            done.add(job["n"])
        await own.close()

    for n in range(JOBS):
        await js.publish("relief.jobs", json.dumps({"n": n}).encode())
    await asyncio.gather(work("first", 2), work("second", JOBS))
    print(sorted(done))
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
