"""Five clients of one name draw numbers from one key, and none is drawn twice."""

import asyncio
import os

import nats
from nats.js.errors import KeyWrongLastSequenceError

DRAWS = 3


async def _draw(url: str) -> list[int]:
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value("numbers")
    drawn: list[int] = []
    while len(drawn) < DRAWS:
        entry = await kv.get("next")
        number = int(entry.value or b"")
        try:
            await kv.update("next", str(number + 1).encode(), last=entry.revision)
        except KeyWrongLastSequenceError:
            continue
        drawn.append(number)
    await nc.close()
    return drawn


async def main(url: str) -> None:
    nc = await nats.connect(url)
    kv = await nc.jetstream().create_key_value(bucket="numbers")
    await kv.put("next", b"1")
    drawn = await asyncio.gather(*(_draw(url) for _ in range(5)))
    print(sorted(number for numbers in drawn for number in numbers))
    print((await kv.get("next")).value)
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
