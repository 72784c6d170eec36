"""Two members of a queue group answer; the one who asks tries again, and wants each answer to be right."""

import asyncio
import os

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError, TimeoutError


async def member(name: str) -> Client:
    nc = await nats.connect(os.environ["NATS_URL"], name=name)

    async def answer(msg: Msg) -> None:
        await msg.respond(msg.data.upper())

    await nc.subscribe("words.upper", queue="members", cb=answer)
    await nc.flush(timeout=2)
    return nc


async def main() -> None:
    members = [await member("ann"), await member("bob")]
    asker = await nats.connect(os.environ["NATS_URL"], name="asker")
    for word in ("one", "two", "three", "four"):
        for _ in range(10):
            try:
                found = await asker.request("words.upper", word.encode(), timeout=0.5)
                break
            except TimeoutError:
                continue
            except NoRespondersError:
                await asyncio.sleep(0.5)
        else:
            raise RuntimeError(f"no answer for {word}")
        assert found.data.decode() == word.upper(), found.data
    for nc in (*members, asker):
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
