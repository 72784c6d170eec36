"""An object store."""

import asyncio
import os

import nats


async def main() -> None:
    client = await nats.connect(os.environ["NATS_URL"], name="objects")
    js = client.jetstream()
    store = await js.create_object_store("files")
    info = await store.put("readme", b"hello" * 10)
    print(info.name, info.size)
    found = await store.get("readme")
    print(found.data)
    await store.delete("readme")
    await js.delete_object_store("files")
    await client.close()


asyncio.run(main())
