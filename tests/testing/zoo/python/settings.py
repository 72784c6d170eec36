"""A service that watches its settings in a key-value bucket, which somebody else changes."""

import asyncio
import os
import uuid

import nats
from nats.js.errors import KeyWrongLastSequenceError


async def main(url: str) -> None:
    nc = await nats.connect(url, name="settings")
    js = nc.jetstream()
    kv = await js.create_key_value(bucket="settings", history=5)
    await kv.put("region", b"eu")
    first = await kv.put("instance", str(uuid.uuid4()).encode())
    watcher = await kv.watchall()
    seen = []
    while "stop" not in seen:
        entry = await watcher.updates(timeout=10)
        if entry is None:
            print("that is all for now")
            await kv.put("ready", b"yes")
        elif entry.key != "instance":
            seen.append(entry.key)
            print(entry.key, entry.value.decode(), entry.operation)
    await watcher.stop()
    second = await kv.update("instance", str(uuid.uuid4()).encode(), last=first)
    try:
        await kv.update("instance", b"late", last=first)
    except KeyWrongLastSequenceError:
        print("somebody was faster")
    print(second > first, sorted(await kv.keys()))
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
