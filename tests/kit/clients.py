"""Clients of nats-py, and their habits."""

from __future__ import annotations

from nats.aio.client import Client


async def settle(*clients: Client) -> None:
    """Wait until the server has handled all that clients were asked to send.

    One flush is not enough: nats-py writes its PING ahead of the bytes that are still in its buffer.
    """
    for client in clients:
        await client.flush()
        await client.flush()
