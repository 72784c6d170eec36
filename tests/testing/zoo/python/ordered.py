"""An ordered consumer that loses its consumer on the way and starts again where it was."""

import asyncio
import json
import os
import uuid

import nats


async def main(url: str) -> None:
    nc = await nats.connect(url, name="ordered")
    js = nc.jetstream()
    await js.add_stream(name="LEDGER", subjects=["ledger.*"])
    entries = []
    for n in range(6):
        entries.append({"entry": str(uuid.uuid4()), "amount": n * 10})
        await js.publish(f"ledger.{n % 2}", json.dumps(entries[-1]).encode())
    sub = await js.subscribe("ledger.*", ordered_consumer=True, idle_heartbeat=0.2)
    for n in range(6):
        msg = await sub.next_msg(timeout=5)
        assert json.loads(msg.data) == entries[n]
        print(msg.subject, msg.metadata.sequence.stream)
    before = (await sub.consumer_info()).name
    await js.delete_consumer("LEDGER", before)  # as a restarted server does with one in memory
    entries.append({"entry": str(uuid.uuid4()), "amount": 999})
    await js.publish("ledger.0", json.dumps(entries[-1]).encode())
    msg = await sub.next_msg(timeout=5)
    assert json.loads(msg.data) == entries[-1]
    print(msg.subject, msg.metadata.sequence.stream, (await sub.consumer_info()).name != before)
    await sub.unsubscribe()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
