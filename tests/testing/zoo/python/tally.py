"""Two clients that count in one key: each reads, adds, updates, and tries again when the other was faster."""

import asyncio
import json
import os
import random

import nats
from nats.js.errors import KeyWrongLastSequenceError

ROUNDS = 4


async def _count(url: str, owner: str) -> int:
    nc = await nats.connect(url, name=f"tally-{owner}")
    kv = await nc.jetstream().key_value("tally")
    conflicts = 0
    for _ in range(ROUNDS):
        while True:
            entry = await kv.get("total")
            total = json.loads(entry.value or b"")
            await asyncio.sleep(random.uniform(0, 0.005))
            changed = {"count": total["count"] + 1, "last": owner}
            try:
                await kv.update("total", json.dumps(changed).encode(), last=entry.revision)
                break
            except KeyWrongLastSequenceError:
                conflicts += 1
    await nc.publish(f"tally.done.{owner}", json.dumps({"rounds": ROUNDS, "conflicts": conflicts}).encode())
    await nc.close()
    return ROUNDS


async def main(url: str) -> None:
    nc = await nats.connect(url, name="tally")
    kv = await nc.jetstream().create_key_value(bucket="tally", history=5)
    await kv.put("total", json.dumps({"count": 0, "last": ""}).encode())
    done = await asyncio.gather(*(_count(url, owner) for owner in ("ann", "bob")))
    total = json.loads((await kv.get("total")).value or b"")
    assert total["count"] == sum(done), total
    print(total["count"])
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
