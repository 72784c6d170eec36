"""Workers that write and read back at the same time; some have connections of their own, some share one."""

import asyncio
import json
import os
import random
import uuid

import nats
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore


async def _while() -> None:
    await asyncio.sleep(random.uniform(0, 0.03))


async def _account(kv: KeyValue, owner: str) -> None:
    """Count in a key that is the same in each run, beside one that is not."""
    key = f"session.{owner}.{uuid.uuid4()}"
    try:
        await kv.get(key)
    except KeyNotFoundError:
        await kv.put(key, b"open")
    for n in range(3):
        await _while()
        await kv.put(f"balance.{owner}", str(n).encode())
        await _while()
        assert (await kv.get(f"balance.{owner}")).value == str(n).encode()
    await kv.delete(f"balance.{owner}")
    await _while()
    try:
        print(owner, "is left:", (await kv.get(f"balance.{owner}")).value)
    except KeyNotFoundError:
        await kv.put(key, b"closed")
    assert (await kv.get(key)).value == b"closed"


async def _worker(url: str, owner: str) -> None:
    nc = await nats.connect(url, name=f"ledger-{owner}")
    await _account(await nc.jetstream().key_value("ledger"), owner)
    await nc.close()


async def _statement(store: ObjectStore, owner: str) -> None:
    name = f"{owner}/{uuid.uuid4()}"
    content = json.dumps({"owner": owner, "lines": ["paid"] * 40, "id": name}).encode()
    await _while()
    await store.put(name, content)
    await _while()
    assert (await store.get(name)).data == content


async def main(url: str) -> None:
    nc = await nats.connect(url, name="ledger")
    js = nc.jetstream()
    kv = await js.create_key_value(bucket="ledger")
    store = await js.create_object_store("statements")
    owners = ("ann", "bob")
    await asyncio.gather(
        *(_worker(url, owner) for owner in owners),
        *(_account(kv, f"house-{owner}") for owner in owners),
        *(_statement(store, owner) for owner in (*owners, "eve")),
    )
    print(sorted(key for key in await kv.keys() if key.startswith("balance")))
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
