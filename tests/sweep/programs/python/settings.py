"""A service that keeps its settings in a key-value bucket: each write and each read is tried again."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.errors import Error

SETTINGS = {"limit": b"10", "region": b"north", "colour": b"green"}


async def retried(call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    for _ in range(5):
        try:
            return await call(*arguments)
        except Error as error:
            problem = error
            await asyncio.sleep(0.3)
    raise problem


async def main() -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="settings")
    js = nc.jetstream(timeout=1)
    bucket = await retried(lambda: js.create_key_value(bucket="SETTINGS"))
    for key, value in SETTINGS.items():
        await retried(bucket.put, key, value)
    for key, value in SETTINGS.items():
        entry = await retried(bucket.get, key)
        assert entry.value == value, f"{key}: {entry.value!r}"
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
