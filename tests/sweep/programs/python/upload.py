"""An uploader of 40 MB that watches its link with PINGs.  With `--small` it sends 1 KB."""

import asyncio
import os
import sys

import nats


async def main(piece: bytes) -> None:
    async def say_back() -> None:
        print("the link was lost and is back")

    nc = await nats.connect(
        os.environ["NATS_URL"],
        name="uploader",
        ping_interval=0.5,
        max_outstanding_pings=2,
        reconnected_cb=say_back,
        reconnect_time_wait=0.2,
    )
    for n in range(40):
        await nc.publish(f"upload.{n}", piece)
    await nc.flush(timeout=3)
    print("all was sent")
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(bytes(25 if "--small" in sys.argv else 1_000_000)))
