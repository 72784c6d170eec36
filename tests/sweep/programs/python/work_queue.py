"""A worker of a work queue: a result for each job, stored once by its id, then the ack of the job."""

import asyncio
import os
import sys
import time

import nats
from nats.errors import Error
from nats.js.api import ConsumerConfig, RetentionPolicy
from nats.js.client import JetStreamContext

JOBS = 5


async def store(js: JetStreamContext, job: str) -> None:
    for _ in range(6):
        try:
            await js.publish("results.new", f"{job} done".encode(), timeout=1, headers={"Nats-Msg-Id": job})
            return
        except Error:
            await asyncio.sleep(0.2)
    sys.exit(f"the result of {job} is not stored")


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="worker")
    js = nc.jetstream()
    await js.add_stream(name="RESULTS", subjects=["results.new"])
    await js.add_stream(name="WORK", subjects=["work.new"], retention=RetentionPolicy.WORK_QUEUE)
    for number in range(JOBS):
        job = f"job {number}"
        await js.publish("work.new", job.encode(), headers={"Nats-Msg-Id": job})
    config = ConsumerConfig(ack_wait=1)
    sub = await js.pull_subscribe("work.new", durable="workers", stream="WORK", config=config)
    stored: set[str] = set()
    deadline = time.monotonic() + 20
    while len(stored) < JOBS:
        if time.monotonic() > deadline:
            sys.exit(f"only {len(stored)} results")
        try:
            (msg,) = await sub.fetch(1, timeout=0.5)
        except nats.errors.TimeoutError:
            continue
        job = msg.data.decode()
        if job not in stored:
            await store(js, job)
            stored.add(job)
        await msg.ack()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
