"""Requests that are tried again, with jitter: to a service that is not there yet, and to one that hangs."""

import asyncio
import json
import os
import random
import uuid

import nats
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoAnswer


async def main(url: str) -> None:
    nc = await nats.connect(url, name="retries")

    async def ask(subject: str, question: dict[str, object]) -> dict[str, object]:
        request_id, attempt = str(uuid.uuid4()), 0
        while True:
            attempt += 1
            headers = {"X-Request-Id": request_id, "X-Attempt": str(attempt)}
            body = json.dumps({**question, "request": request_id}).encode()
            try:
                answer = json.loads((await nc.request(subject, body, timeout=1, headers=headers)).data)
                assert answer["request"] == request_id
                return dict(answer)
            except (NoRespondersError, NoAnswer):
                await asyncio.sleep(0.01 * attempt * random.uniform(0.5, 1.5))

    await nc.publish("quotes.wanted", b"")
    print((await ask("quotes.get", {"symbol": "ABC"}))["price"])
    print((await ask("quotes.slow", {"symbol": "XYZ"}))["price"])
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["NATS_URL"]))
