"""A key-value bucket: put, get, create, update, conflict, delete, history, keys, watch."""

import asyncio
import os

import nats
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="kv")
    js = nc.jetstream()
    kv = await js.create_key_value(bucket="conf", history=5)
    print(await kv.put("a", b"1"), await kv.put("a", b"2"), await kv.create("b", b"x"))
    entry = await kv.get("a")
    print(entry.value, entry.revision)
    print(await kv.update("a", b"3", last=entry.revision))
    try:
        await kv.update("a", b"4", last=1)
    except KeyWrongLastSequenceError:
        print("conflict")
    watcher = await kv.watchall()
    seen = []
    async for update in watcher:
        if update is None:
            break
        seen.append((update.key, update.value, update.revision))
    print(seen)
    await kv.put("c", b"later")
    update = await watcher.updates(timeout=5)  # type: ignore[no-untyped-call]
    print(update.key, update.value)
    await watcher.stop()  # type: ignore[no-untyped-call]
    await kv.delete("b")
    try:
        await kv.get("b")
    except KeyNotFoundError:
        print("gone")
    print(sorted(await kv.keys()))
    print([(e.value, e.operation) for e in await kv.history("a")])
    await js.delete_key_value("conf")
    await nc.close()


asyncio.run(main())
