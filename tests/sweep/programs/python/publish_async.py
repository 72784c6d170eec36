"""An importer that publishes a batch and waits for all acks together, with `--deadline` not for ever."""

import asyncio
import os
import sys

import nats


async def main(patience: float | None) -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="importer")
    js = nc.jetstream()
    await js.add_stream(name="IMPORT", subjects=["import.*"])
    acks = [await js.publish_async(f"import.{n}", f"row {n}".encode()) for n in range(5)]
    await asyncio.wait_for(js.publish_async_completed(), patience)
    for ack in acks:
        print("stored as", ack.result().seq)
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(2.0 if "--deadline" in sys.argv else None))
