"""Setup of a program: a stream with messages, `fill.py STREAM SUBJECT COUNT SIZE`."""

import asyncio
import os
import sys

import nats


async def main(stream: str, subject: str, count: int, size: int) -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="setup")
    js = nc.jetstream()
    await js.add_stream(name=stream, subjects=[subject])
    for n in range(1, count + 1):
        await js.publish(subject, str(n).encode().ljust(size))
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
