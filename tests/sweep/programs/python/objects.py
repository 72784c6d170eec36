"""A report that is stored as an object and read back, with `--deadline` not for ever."""

import asyncio
import os
import sys

import nats
from nats.js.api import ObjectMeta, ObjectMetaOptions

REPORT = b"page\n" * 2000


async def main(patience: float | None) -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="reports", reconnect_time_wait=0.2)
    store = await nc.jetstream().create_object_store("REPORTS")
    chunks = ObjectMetaOptions(max_chunk_size=2500)
    await store.put("may", REPORT, meta=ObjectMeta(name="may", options=chunks))
    report = await asyncio.wait_for(store.get("may"), patience)
    assert report.data == REPORT
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(8.0 if "--deadline" in sys.argv else None))
