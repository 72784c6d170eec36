"""The proxies of Toxiproxy's API: each is a `Proxy` of its own while it is enabled.

Settings that the API does not have come from `base`, without the timeouts that a toxic would trigger.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from natsproxy import close_reasons
from natsproxy.addresses import MAX_PORT, Address, address_of
from natsproxy.admin.managed import ManagedProxy, ProxyCollection
from natsproxy.admin.toxiproxy.go_json import (
    Read,
    ToxiproxyError,
    bad_body,
    boolean,
    fields,
    first_value,
    missing,
    text,
)
from natsproxy.admin.toxiproxy.toxics import Toxics
from natsproxy.config.endpoints import Listener, Server, read_server
from natsproxy.config.settings import ProxySettings
from natsproxy.net.proxy import Proxy
from natsproxy.net.rule_book import RuleBook
from natsproxy.rules.engine.chain import RuleChain

_FIELDS: Final[Mapping[str, Read]] = {"name": text, "listen": text, "upstream": text, "enabled": boolean}


class ToxicProxy:
    """One proxy.  listen: as asked for, and as the system resolved it once the proxy was started."""

    fixed = False
    """True if the API cannot stop, move or delete it."""

    def __init__(
        self, name: str, listen: str, upstream: str, base: ProxySettings, seed: int | None = None
    ) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.enabled = False
        self._base = base
        self._seed = seed or base.seed or 0
        self._proxy: Proxy | None = None
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self.toxics = Toxics(self._seed, self._end, self._book)

    def as_json(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        return {
            "name": self.name,
            "listen": self.listen,
            "upstream": self.upstream,
            "enabled": self.enabled,
            "toxics": [toxic.as_json() for toxic in self.toxics.all()],
        }

    async def rules_in_force(self) -> None:
        """Wait until those of its toxics that are rules are in force on all connections."""
        if self._proxy is not None:
            await self._proxy.rules_in_force()

    async def differs(self, listen: str, upstream: str) -> bool:
        """Tell whether these addresses differ from its own.  Raises ToxiproxyError for an invalid one."""
        return upstream != self.upstream or (
            listen != self.listen and str(await _resolved(listen)) != self.listen
        )

    # -- lifecycle

    async def start(self, nursery: trio.Nursery, collection: ProxyCollection) -> None:
        """Listen; does nothing if it already does.  Raises ToxiproxyError."""
        if self.enabled:
            return
        sock = _listening(await _resolved(self.listen))
        address = address_of(*sock.getsockname()[:2])
        settings = replace(
            self._base,
            listen=(Listener(address),),
            upstream=(_server(self.upstream),),
            auth_timeout=0,
            write_deadline=0,
            idle_timeout=0,
            record=None,
        )
        self._proxy = proxy = Proxy(settings, RuleChain(self.toxics.rules(), seed=self._seed), [sock])
        proxy.put_over_legs(self.toxics.layers)
        self._scope, self._stopped = trio.CancelScope(), trio.Event()
        collection.add(ManagedProxy(self.name, proxy))
        await nursery.start(self._serve, proxy)
        self.listen, self.enabled = str(address), True

    async def _serve(self, proxy: Proxy, *, task_status: trio.TaskStatus[object]) -> None:
        try:
            with self._scope:
                await proxy.serve(task_status=task_status)
        finally:
            self._stopped.set()

    async def stop(self, collection: ProxyCollection) -> None:
        """Stop listening, and close its connections; its toxics stay."""
        if self._proxy is not None:
            self._scope.cancel()
            await self._stopped.wait()
            self._proxy, self.enabled = None, False
            collection.remove(self.name)

    # -- for its toxics

    def _end(self, conn: int, why: str, reset: bool) -> None:
        if self._proxy is not None and (relay := self._proxy.relays.get(conn)) is not None:
            relay.kill(close_reasons.RULE, why, reset=reset)

    def _book(self) -> RuleBook | None:
        return None if self._proxy is None else self._proxy.rules


class MainProxy(ToxicProxy):
    """The proxy of `natsproxy run`: the API controls only its toxics."""

    fixed = True

    def __init__(self, managed: ManagedProxy) -> None:
        proxy = managed.proxy
        super().__init__(
            managed.name, "", str(proxy.settings.upstream[0].address), proxy.settings, proxy.seed
        )
        self._proxy, self.enabled = proxy, True
        proxy.put_over_legs(self.toxics.layers)

    def as_json(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        self._look()
        return super().as_json()

    async def differs(self, listen: str, upstream: str) -> bool:
        """Tell whether these addresses differ from its own.  Raises ToxiproxyError for an invalid one."""
        self._look()
        return await super().differs(listen, upstream)

    def _look(self) -> None:
        assert self._proxy is not None
        self.listen = str(next(iter(self._proxy.listen), ""))  # known once it serves


class Proxies:
    """The proxies of the API, by name.

    base: settings that the API does not have.  nursery: they run in it; the server sets it.
    collection: the running ones, for other APIs.  main: one that exists from the start.
    """

    def __init__(
        self, base: ProxySettings, collection: ProxyCollection, main: MainProxy | None = None
    ) -> None:
        self._base = base
        self.nursery: trio.Nursery | None = None
        self._collection = collection
        self._proxies: dict[str, ToxicProxy] = {} if main is None else {main.name: main}
        self._changing = trio.Lock()

    def all(self) -> list[ToxicProxy]:
        """Return the proxies in order of their names."""
        return [self._proxies[name] for name in sorted(self._proxies)]

    def get(self, name: str) -> ToxicProxy:
        """Return a proxy.  Raises ToxiproxyError."""
        try:
            return self._proxies[name]
        except KeyError:
            raise ToxiproxyError(404, "proxy not found") from None

    async def create(self, body: bytes) -> ToxicProxy:
        """Create the proxy of a request.  Raises ToxiproxyError."""
        given = fields(first_value(body), _FIELDS)
        for field in ("name", "upstream"):
            if not given.get(field):
                raise missing(field)
        async with self._changing:
            if given["name"] in self._proxies:
                raise ToxiproxyError(409, "proxy already exists")
            return await self._make(given)

    async def change(self, name: str, body: bytes) -> ToxicProxy:
        """Change a proxy as a request says.  Raises ToxiproxyError."""
        async with self._changing:
            proxy = self.get(name)
            now = {"listen": proxy.listen, "upstream": proxy.upstream, "enabled": proxy.enabled}
            wanted = {**now, **fields(first_value(body), _FIELDS)}
            differs = await proxy.differs(wanted["listen"], wanted["upstream"])
            if proxy.fixed and (differs or wanted["enabled"] != proxy.enabled):
                raise _not_ours(name)
            if differs:
                await proxy.stop(self._collection)
                proxy.listen, proxy.upstream = wanted["listen"], wanted["upstream"]
            if wanted["enabled"]:
                await self._start(proxy)
            else:
                await proxy.stop(self._collection)
            return proxy

    async def delete(self, name: str) -> None:
        """Stop a proxy and forget it.  Raises ToxiproxyError."""
        async with self._changing:
            proxy = self.get(name)
            if proxy.fixed:
                raise _not_ours(name)
            await proxy.stop(self._collection)
            del self._proxies[name]

    async def populate(self, body: bytes, made: list[ToxicProxy]) -> None:
        """Create the proxies of a list; identical ones stay.  made: receives them.  Raises ToxiproxyError."""
        value = first_value(body)
        if not isinstance(value, list | None):
            raise bad_body("json: cannot unmarshal into Go value of type []")
        wanted = [fields(item, _FIELDS) for item in value or ()]
        for number, given in enumerate(wanted, 1):
            for field in ("name", "upstream"):
                if not given.get(field):
                    raise missing(f"{field} at proxy {number}")
        async with self._changing:
            for given in wanted:
                made.append(await self._replaced(given))

    async def _replaced(self, given: Mapping[str, Any]) -> ToxicProxy:
        old = self._proxies.get(given["name"])
        if old is not None:
            if not await old.differs(given.get("listen", ""), given["upstream"]):
                return old
            if old.fixed:
                raise _not_ours(old.name)
            await old.stop(self._collection)
        return await self._make(given)

    async def reset(self) -> None:
        """Start all proxies and remove all toxics.  Raises ToxiproxyError."""
        async with self._changing:
            for proxy in self.all():
                await self._start(proxy)
                proxy.toxics.reset()
                await proxy.rules_in_force()

    async def _make(self, given: Mapping[str, Any]) -> ToxicProxy:
        proxy = ToxicProxy(given["name"], given.get("listen", ""), given["upstream"], self._base)
        if given.get("enabled", True):
            await self._start(proxy)
        self._proxies[proxy.name] = proxy
        return proxy

    async def _start(self, proxy: ToxicProxy) -> None:
        assert self.nursery is not None
        await proxy.start(self.nursery, self._collection)


def _not_ours(name: str) -> ToxiproxyError:
    return ToxiproxyError(
        403, f"the proxy {name} is that of natsproxy run: only its toxics can be changed here"
    )


def _server(upstream: str) -> Server:
    """Return the server of an upstream; for an invalid address, clients are closed when they connect."""
    try:
        return read_server(upstream, port=None, credentials=True)
    except ValueError:
        return Server(Address(upstream, 0))


async def _resolved(listen: str) -> Address:
    """Return the IP address and the port of a text such as `localhost:0`.  Raises ToxiproxyError."""
    host, colon, port = listen.rpartition(":")
    if not listen:
        return Address("", 0)
    if not colon or (":" in host and not host.startswith("[")):
        wrong = "too many colons in address" if colon else "missing port in address"
        raise ToxiproxyError(500, f"listen tcp: address {listen}: {wrong}")
    if port.isdecimal() and int(port) > MAX_PORT:
        raise ToxiproxyError(500, f"listen tcp: address {port}: invalid port")
    host = host.strip("[]")
    try:
        found = await trio.socket.getaddrinfo(host or None, port or 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToxiproxyError(500, f"listen tcp: lookup {listen}: no such host") from None
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    address, number = found[0][4][:2]
    return Address(str(address) if host else "", int(number))


def _listening(address: Address) -> socket.socket:
    """Return a socket that listens; without a host, on all addresses.  Raises ToxiproxyError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        if not address.host and socket.has_dualstack_ipv6():
            return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        reason = reason[:1].lower() + reason[1:]
        raise ToxiproxyError(500, f"listen tcp {address}: bind: {reason}") from None
