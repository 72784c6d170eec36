"""The opening of a client leg: the steps between the accept and the dial of a server.

Each step is there for the listeners that ask for it.  A plain listener has none, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import trio

from natsproxy.addresses import Address
from natsproxy.config.settings import Listener, ProxySettings
from natsproxy.net import proxy_protocol
from natsproxy.net.leg import AnyLeg, Leg, LegLost
from natsproxy.session import close_reasons


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Facts of a client leg.

    peer: the address of the client as `host:port`.  local: the address that it dialled.  proxied_by: the
    address of the load balancer that says so, "" for none.  upgrade: headers of
    its upgrade to WebSocket that a WebSocket server is to see; secrets.
    """

    peer: str
    local: Address
    proxied_by: str = ""
    upgrade: Mapping[str, str] = field(default_factory=dict, repr=False)


class OpeningFailed(Exception):
    """A client leg did not come about.  cause: one of `session/close_reasons.py`; the text is the reason."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


async def open_client(leg: Leg, listener: Listener, settings: ProxySettings) -> tuple[AnyLeg, ClientFacts]:
    """Return the leg that carries NATS, and its facts.

    leg: as accepted by the listener; the caller closes it at the end, whatever layers are over it.
    Raises OpeningFailed.
    """
    facts = ClientFacts(leg.peer, leg.local)
    if proxy_protocol.expected(listener, facts.peer):
        facts = await _read_header(leg, facts, settings)
    opened: AnyLeg = leg
    if listener.scheme == "ws":
        opened, upgrade = await _accept_websocket(opened, settings)
        facts = replace(facts, upgrade=upgrade)
    return opened, facts


async def _read_header(leg: Leg, facts: ClientFacts, settings: ProxySettings) -> ClientFacts:
    try:
        header = await proxy_protocol.receive_header(leg, settings.auth_timeout / 1e9 or float("inf"))
    except proxy_protocol.BadHeader as error:
        raise OpeningFailed(close_reasons.CLIENT_PROTOCOL, str(error)) from None
    except LegLost as lost:
        raise OpeningFailed(close_reasons.CLIENT_LOST, str(lost)) from None
    if header.source is None or header.destination is None:  # the load balancer looks whether we are alive
        return facts
    return ClientFacts(str(header.source), header.destination, facts.peer)


async def _accept_websocket(leg: AnyLeg, settings: ProxySettings) -> tuple[AnyLeg, Mapping[str, str]]:
    from natsproxy.net import websocket_leg  # only then: the library takes a while to load

    limit = settings.auth_timeout / 1e9 or float("inf")
    with trio.move_on_after(limit):
        try:
            return await websocket_leg.accept_websocket(
                leg, frame_max=settings.queue_bytes, origins=settings.websocket_origin
            )
        except websocket_leg.WebSocketRefused as refused:
            raise OpeningFailed(close_reasons.CLIENT_PROTOCOL, str(refused)) from None
        except LegLost as lost:
            raise OpeningFailed(close_reasons.CLIENT_LOST, str(lost)) from None
    raise OpeningFailed(close_reasons.STALLED, "the client asked for no WebSocket in the auth time-out")
