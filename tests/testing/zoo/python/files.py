"""Objects: reports with names of their own in a bucket that is watched, read back and deleted."""

import asyncio
import os
import uuid

import nats
from nats.js.api import ObjectMeta


async def main(url: str) -> None:
    nc = await nats.connect(url, name="files")
    store = await nc.jetstream().create_object_store(bucket="reports")
    watcher = await store.watch()
    run = str(uuid.uuid4())
    await store.put("summary.txt", b"all is well\n" * 10_000)
    await store.put("detail.bin", bytes(range(256)) * 600, ObjectMeta(description=f"run {run}"))
    seen: list[str] = []
    while len(seen) < 2:
        info = await watcher.updates(timeout=5)
        if info is not None:
            seen.append(info.name)
            print(info.name, info.size, info.chunks)
    await watcher.stop()
    got = await store.get("detail.bin")
    assert got.info.description == f"run {run}"
    print(len(got.data or b""), got.info.digest)
    await store.delete("summary.txt")
    print([info.name for info in await store.list(ignore_deletes=True)])
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
