"""A reader of a whole stream with an ordered consumer, with `--deadline` not for ever."""

import asyncio
import os
import sys

import nats

MESSAGES = 12


async def main(patience: float | None) -> None:
    nc = await nats.connect(os.environ["NATS_URL"], name="ordered", reconnect_time_wait=0.2)
    sub = await nc.jetstream().subscribe("log.line", ordered_consumer=True)
    for number in range(1, MESSAGES + 1):
        line = await sub.next_msg(timeout=patience)
        if int(line.data) != number:
            sys.exit(f"line {int(line.data)} came where {number} was due")
    print("read", MESSAGES)
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(8.0 if "--deadline" in sys.argv else None))
