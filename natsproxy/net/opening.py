"""The opening of a client leg: the steps between the accept and the dial of a server.

The settings of a listener name the steps.  A plain listener has none: its clients are dialled for at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final, NamedTuple

import trio

from natsproxy import close_reasons
from natsproxy.addresses import WILDCARDS, Address, is_ip
from natsproxy.config.endpoints import SCHEMES, Listener
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import HandshakeFirst
from natsproxy.net import proxy_protocol
from natsproxy.net.leg import AnyLeg, Leg, LegLost
from natsproxy.net.tls_contexts import TlsContexts
from natsproxy.net.tls_leg import TlsLeg
from natsproxy.session.values import Identity, SessionSettings

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - only compared
_MOST_ADDRESSES: Final = 256  # that clients dial: load balancers may name many


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Facts of a client leg.

    peer: the address of the client as `host:port`.  local: the address that it dialled.  proxied_by: the
    address of the load balancer in front, "" for none.  tls: the layer with TLS, whose handshake may come
    later.  upgrade: headers of its WebSocket upgrade that a WebSocket server is to see; secrets.
    """

    peer: str
    local: Address
    proxied_by: str = ""
    tls: TlsLeg | None = None
    upgrade: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS, repr=False)


class Accepted(NamedTuple):
    """A client leg with its facts, the connection's number, the time of the accept (ns), and the listener.

    plain: the leg on the socket, which `leg` may be layers over.
    """

    leg: AnyLeg
    plain: Leg
    facts: ClientFacts
    conn: int
    opened: int
    listener: Listener


class OpeningFailed(Exception):
    """A client leg could not be opened.  cause: of `close_reasons.py`; the text is the reason."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


class Opening:
    """Opens client legs.

    counted: returns, for the address of a client (`host:port`), a context that counts the leg while it opens.
    """

    def __init__(
        self,
        settings: ProxySettings,
        contexts: TlsContexts,
        counted: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._settings = settings
        self._contexts = contexts
        self._counted = counted

    async def open(self, leg: Leg, listener: Listener) -> tuple[AnyLeg, ClientFacts]:
        """Return the leg that carries NATS, and its facts.

        leg: as accepted by the listener; the caller closes it at the end, whatever layers are over it.
        Raises OpeningFailed.
        """
        facts = ClientFacts(leg.peer, leg.local)
        if proxy_protocol.expected(listener, facts.peer):
            facts = await self._with_header(leg, facts)
        with self._counted(facts.peer):  # not before: the load balancer's own address is not the client's
            return await self._with_layers(leg, listener, facts)

    async def _with_layers(
        self, leg: Leg, listener: Listener, facts: ClientFacts
    ) -> tuple[AnyLeg, ClientFacts]:
        """Return the leg with the layers of its listener, and its facts."""
        opened: AnyLeg = leg
        if listener.tls:
            opened = secured = await self._with_tls(opened, first=listener.websocket)
            facts = replace(facts, tls=secured)
        if listener.websocket:
            opened, upgrade = await self._with_websocket(opened)
            identity = self._settings.identity
            if identity is not None and identity.logs_in:  # a server may take a cookie for a password
                upgrade = {name: text for name, text in upgrade.items() if name != "Cookie"}
            facts = replace(facts, upgrade=upgrade)
        return opened, facts

    async def _with_header(self, leg: Leg, facts: ClientFacts) -> ClientFacts:
        """Return the facts from the PROXY protocol header of a load balancer."""
        try:
            limit = self._settings.auth_timeout / 1e9 or float("inf")
            header = await proxy_protocol.receive_header(leg, limit)
        except proxy_protocol.BadHeader as error:
            raise OpeningFailed(close_reasons.CLIENT_PROTOCOL, str(error)) from None
        except LegLost as lost:
            raise OpeningFailed(close_reasons.CLIENT_LOST, str(lost)) from None
        if header.source is None or header.destination is None:  # a health check of the load balancer itself
            return facts
        return ClientFacts(str(header.source), header.destination, facts.peer)

    async def _with_tls(self, leg: AnyLeg, *, first: bool) -> TlsLeg:
        """Return a leg with TLS: after the handshake where that is first, else to be upgraded after INFO."""
        limit, context = self._settings.tls.timeout, self._contexts.client_leg
        if not (first or await _speaks_first(leg, self._settings.tls.handshake_first)):
            optional = self._settings.tls.allow_non_tls
            return TlsLeg(leg, context, timeout=limit, after_line=True, optional=optional)
        secured = TlsLeg(leg, context, timeout=limit)
        try:
            await secured.handshake()
        except LegLost as lost:
            cause = close_reasons.CLIENT_PROTOCOL if secured.broken else close_reasons.CLIENT_LOST
            raise OpeningFailed(cause, str(lost)) from None
        return secured

    async def _with_websocket(self, leg: AnyLeg) -> tuple[AnyLeg, Mapping[str, str]]:
        from natsproxy.net import websocket_leg  # only then: the library takes a while to load

        limit = self._settings.auth_timeout / 1e9 or float("inf")
        with trio.move_on_after(limit):
            try:
                return await websocket_leg.accept_websocket(leg, origins=self._settings.websocket_origin)
            except websocket_leg.WebSocketRefused as refused:
                raise OpeningFailed(close_reasons.CLIENT_PROTOCOL, str(refused)) from None
            except LegLost as lost:
                raise OpeningFailed(close_reasons.CLIENT_LOST, str(lost)) from None
        raise OpeningFailed(
            close_reasons.STALLED, "the client sent no WebSocket upgrade in the auth time-out"
        )


async def _speaks_first(leg: AnyLeg, first: HandshakeFirst | None) -> bool:
    """Tell whether TLS comes before INFO: not where a client sends nothing in the fallback delay."""
    if first is None:
        return False
    if not first.fallback:
        return True
    with trio.move_on_after(first.fallback / 1e9):
        await leg.wait_readable()
        return True
    return False


class SettingsOfSessions:
    """The settings of sessions: one for each scheme of a listener and each address that clients dial.

    They are made once, because each connection asks for them.
    """

    _listening: tuple[tuple[str, Address], ...] = ()

    def __init__(self, settings: ProxySettings) -> None:
        self._by_scheme = {scheme: _session_settings(settings, Listener(scheme=scheme)) for scheme in SCHEMES}
        self._made = lru_cache(_MOST_ADDRESSES)(self._make)

    def for_client(self, listener: Listener, facts: ClientFacts) -> SessionSettings:
        """Return the settings for a client of a listener."""
        return self._made(listener.scheme, facts.local, bool(facts.proxied_by))

    def _make(self, scheme: str, local: Address, proxied: bool) -> SessionSettings:
        # Where a load balancer stands in front, only it knows the addresses that clients can dial.
        own = () if proxied else self._listening
        urls = tuple(map(str, own_addresses(scheme, local, own)))
        return replace(self._by_scheme[scheme], self_host=local.host, self_port=local.port, self_urls=urls)

    def listen(self, listening: Iterable[tuple[str, Address]]) -> None:
        """Take the schemes and addresses of all listeners."""
        self._listening = tuple(listening)
        self._made.cache_clear()

    def load_identity(self, identity: Identity | None) -> None:
        """Let the proxy's own login be another one from now on."""
        for scheme, settings in self._by_scheme.items():
            self._by_scheme[scheme] = replace(settings, identity=identity)
        self._made.cache_clear()


def own_addresses(scheme: str, local: Address, listening: Iterable[tuple[str, Address]]) -> list[Address]:
    """Return the addresses at which a client can reconnect, beginning with the one that it dialled.

    Listeners with another scheme are left out, and for a client from a network those of loopback: such an
    address would be one of its own machine.
    """
    found = [local]
    for other, address in listening:
        if other != scheme or (address.host == _ANY_IPV4 and ":" in local.host):
            continue
        one = Address(local.host if address.host in WILDCARDS else address.host, address.port)
        if one not in found and _is_loopback(one.host) == _is_loopback(local.host):
            found.append(one)
    return found


def _is_loopback(host: str) -> bool:
    return is_ip(host) and ip_address(host).is_loopback


def _session_settings(settings: ProxySettings, listener: Listener) -> SessionSettings:
    """Return the settings of a session behind a listener: clients with TLS need time for the handshake."""
    tls, members, limit = settings.tls, list[str](), settings.auth_timeout
    if listener.tls:
        offered = tls.allow_non_tls and not listener.websocket
        members = ["tls_available" if offered else "tls_required"]
        members += ["tls_verify"] * (tls.ca is not None)
        limit = limit + tls.timeout if limit and tls.timeout else 0
    own = replace(settings.session, tls=tuple(members), auth_timeout=limit, identity=settings.identity)
    return replace(own, record_frame_max=settings.record.frame_max) if settings.record else own
