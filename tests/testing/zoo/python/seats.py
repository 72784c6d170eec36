"""Three tasks of one client take seats from one key, side by side."""

import asyncio
import os
import random

import nats
from nats.js.errors import KeyWrongLastSequenceError
from nats.js.kv import KeyValue

SEATS = 4


async def _take(kv: KeyValue) -> int:
    taken = 0
    while taken < SEATS:
        entry = await kv.get("left")
        await asyncio.sleep(random.uniform(0, 0.004))
        try:
            await kv.update("left", str(int(entry.value or b"") - 1).encode(), last=entry.revision)
            taken += 1
        except KeyWrongLastSequenceError:
            continue
    return taken


async def main(url: str) -> None:
    nc = await nats.connect(url, name="seats")
    kv = await nc.jetstream().create_key_value(bucket="seats")
    await kv.put("left", b"30")
    print(await asyncio.gather(*(_take(kv) for _ in range(3))))
    print((await kv.get("left")).value)
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
