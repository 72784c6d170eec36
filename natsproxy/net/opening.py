"""The opening of a client leg: the steps between the accept and the dial of a server.

Each step is there for the listeners that ask for it.  A plain listener has none, and nothing waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from natsproxy.addresses import Address
from natsproxy.config.settings import Listener
from natsproxy.net.leg import AnyLeg, Leg


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Facts of a client leg.

    peer: the address of the client as `host:port`.  local: the address that it dialled.
    """

    peer: str
    local: Address


class OpeningFailed(Exception):
    """A client leg did not come about.  cause: one of `session/close_reasons.py`; the text is the reason."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


async def open_client(leg: Leg, listener: Listener) -> tuple[AnyLeg, ClientFacts]:
    """Return the leg that carries NATS, and its facts.

    leg: as accepted by the listener; the caller closes it at the end, whatever layers are over it.
    Raises OpeningFailed.
    """
    return leg, ClientFacts(leg.peer, leg.local)
