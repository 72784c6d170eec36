"""A subscriber that counts what a publisher sends, and fails if one is missing or too many after 3 s."""

import asyncio
import os
import sys

import nats
from nats.errors import TimeoutError

EVENTS = 10


async def main() -> None:
    counter = await nats.connect(os.environ["NATS_URL"], name="counter")
    source = await nats.connect(os.environ["NATS_URL"], name="source")
    events = await counter.subscribe("events.tick")
    await counter.flush(timeout=2)
    await counter.flush(timeout=2)  # the first PING may go out before the SUB
    for number in range(EVENTS):
        await source.publish("events.tick", str(number).encode())
    await source.flush(timeout=2)
    got: list[int] = []
    while len(got) < EVENTS:
        try:
            got.append(int((await events.next_msg(timeout=3)).data))
        except TimeoutError:
            break
    if got != list(range(EVENTS)):
        sys.exit(f"got {got}")
    await source.close()
    await counter.close()


if __name__ == "__main__":
    asyncio.run(main())
