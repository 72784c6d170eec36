"""Two subscribers of a queue group, a fast and a slow one, answer questions; then one of them leaves."""

import asyncio
import json
import os
import random

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg


async def _desk(url: str, name: str, pace: float, left: asyncio.Event, most: int) -> Client:
    nc = await nats.connect(url, name=name)
    answered = 0

    async def answer(msg: Msg) -> None:
        nonlocal answered
        asked = json.loads(msg.data)
        await asyncio.sleep(random.uniform(0, pace))
        await msg.respond(json.dumps({"n": asked["n"], "double": 2 * asked["n"]}).encode())
        answered += 1
        if answered == most:
            left.set()

    await nc.subscribe("desk.ask", queue="desk", cb=answer)
    for _ in range(2):
        await nc.flush()
    return nc


async def main(url: str) -> None:
    left = asyncio.Event()
    desks = await asyncio.gather(
        _desk(url, "desk-quick", 0.003, left, 3), _desk(url, "desk-thorough", 0.02, left, 100)
    )
    nc = await nats.connect(url, name="asker")

    async def ask(n: int) -> int:
        answer = await nc.request("desk.ask", json.dumps({"n": n}).encode(), timeout=5)
        assert json.loads(answer.data)["n"] == n
        return int(json.loads(answer.data)["double"])

    asked = 0
    while not left.is_set():
        assert await ask(asked) == 2 * asked
        asked += 1
    await desks[0].drain()
    print(sorted(await asyncio.gather(*(ask(n) for n in range(100, 106)))))
    await desks[1].close()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
