"""Two workers of one queue group, each with several tasks at a time, that interleave at random."""

import asyncio
import json
import os
import random
import uuid

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

TASKS = 8


async def main(url: str) -> None:
    done: asyncio.Queue[int] = asyncio.Queue()
    running = set()

    async def worker() -> Client:
        nc = await nats.connect(url, name="pool")
        instance = str(uuid.uuid4())

        async def work(msg: Msg) -> None:
            task = json.loads(msg.data)
            await asyncio.sleep(random.uniform(0, 0.03))
            result = {"task": task["id"], "worker": instance, "answer": task["n"] + 100}
            await nc.publish("tasks.done", json.dumps(result).encode(), headers={"X-Task": task["id"]})
            await nc.flush()
            done.put_nowait(task["n"])

        async def begin(msg: Msg) -> None:
            running.add(asyncio.create_task(work(msg)))

        await nc.subscribe("tasks.run", queue="pool", cb=begin)
        await nc.flush()
        return nc

    workers = await asyncio.gather(worker(), worker())
    await workers[0].publish("tasks.ready", b"")
    print(sorted([await asyncio.wait_for(done.get(), 10) for _ in range(TASKS)]))
    await asyncio.gather(*running)
    for nc in workers:
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
