"""An object of 5 MB: put, info, get, list, delete."""

import asyncio
import hashlib
import os

import nats
from nats.js.errors import ObjectNotFoundError


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="objects")
    js = nc.jetstream()
    store = await js.create_object_store("files")
    data = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(5_000_000 // 32))
    info = await store.put("five", data)
    print(info.size, info.chunks, info.digest)
    await store.put("small", b"tiny")
    got = await store.get("five")
    assert got.data is not None
    print(len(got.data), hashlib.sha256(got.data).hexdigest())
    print((await store.get("small")).data)
    print(sorted(entry.name for entry in await store.list()))
    await store.delete("five")
    try:
        await store.get("five")
    except ObjectNotFoundError:
        print("gone")
    await nc.close()


asyncio.run(main())
