"""A worker that pulls jobs in short fetches, of which any may find nothing, and gives up after 20 s."""

import asyncio
import os
import sys
import time

import nats
from nats.errors import TimeoutError
from nats.js.api import ConsumerConfig

JOBS = 6


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="puller")
    config = ConsumerConfig(ack_wait=1)
    sub = await nc.jetstream().pull_subscribe("jobs.new", durable="pullers", stream="JOBS", config=config)
    done: set[str] = set()
    deadline = time.monotonic() + 20
    while len(done) < JOBS:
        if time.monotonic() > deadline:
            sys.exit(f"only {len(done)} jobs came")
        try:
            jobs = await sub.fetch(3, timeout=0.5)
        except TimeoutError:
            continue
        for job in jobs:
            done.add(job.data.decode())
            await job.ack()
    print("done:", *sorted(name.strip() for name in done))
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
