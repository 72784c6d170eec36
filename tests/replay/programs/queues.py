"""Scatter-gather, and queue groups on several connections."""

import asyncio
import os

import nats
from nats.aio.msg import Msg


async def main() -> None:
    url = os.environ["NATS_URL"]
    workers = [await nats.connect(url, name=f"worker-{n}") for n in range(3)]
    asker = await nats.connect(url, name="asker")
    done: list[str] = []

    async def work(msg: Msg) -> None:
        done.append(msg.data.decode())

    for n, worker in enumerate(workers):

        async def part(msg: Msg, n: int = n) -> None:
            await msg.respond(b"part %d of " % n + msg.data)

        await worker.subscribe("jobs.*", queue="pool", cb=work)
        await worker.subscribe("scatter", cb=part)
        for _ in range(2):  # the first PING of nats-py overtakes a SUB that it has not written yet
            await worker.flush()
    inbox = asker.new_inbox()
    parts = await asker.subscribe(inbox)
    await asker.publish("scatter", b"question", reply=inbox)
    print(sorted([(await parts.next_msg(timeout=5)).data.decode() for _ in range(3)]))
    await parts.unsubscribe()
    for n in range(30):
        await asker.publish(f"jobs.{n}", b"job %d" % n)
    await asker.flush()
    async with asyncio.timeout(10):
        while len(done) < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    print(sorted(done))
    for nc in (*workers, asker):
        await nc.close()


asyncio.run(main())
