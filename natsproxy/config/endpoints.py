"""Addresses of a proxy: of servers, of its listeners for clients, and of its HTTP servers."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Final

from natsproxy import converters
from natsproxy.addresses import NATS_PORT, Address, is_ip, parse_address
from natsproxy.errors import ConfigError
from natsproxy.option import ValueType

SCHEMES: Final = ("nats", "tls", "ws", "wss")
"""The schemes of `--listen` and `--upstream`; an address without one has the first."""
_PORTS: Final = {"ws": 80, "wss": 443}
"""The port of an upstream's URL without one, where it is not `NATS_PORT`."""
_UNIX: Final = "unix:"
_ANY_PORT: Final = Address()


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An address with a scheme."""

    address: Address = _ANY_PORT
    scheme: str = SCHEMES[0]

    @property
    def websocket(self) -> bool:
        """True if NATS is carried by WebSocket."""
        return self.scheme in ("ws", "wss")

    @property
    def tls(self) -> bool:
        """True if the leg has TLS, whatever a server says; clients must, but for `allow_non_tls`."""
        return self.scheme in ("tls", "wss")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


@dataclass(frozen=True, slots=True)
class Server(_Endpoint):
    """A server that clients are relayed to, as one `--upstream` URL or another server names it.

    tls_name: the name that its certificate must have; "" for the host of the address.
    """

    tls_name: str = ""


def read_server(text: str, *, port: int | None = NATS_PORT, credentials: bool = False) -> Server:
    """Return the server of a URL.

    port: where it has neither scheme nor port.  credentials: it may have a user, which is ignored.
    """
    scheme = text.partition("://")[0] if "://" in text else None
    port = port if scheme is None else _PORTS.get(scheme, NATS_PORT)
    address = parse_address(text, host="127.0.0.1", port=port, credentials=credentials, schemes=SCHEMES)
    return Server(address, scheme or SCHEMES[0])


def parse_server(url: str, name: str) -> Server:
    """Return the server of a URL; a user and a password in it are ignored: clients bring their own.

    name: of the option, for errors.  Raises ConfigError.
    """
    try:
        return read_server(url, credentials=True)
    except ValueError as error:
        raise ConfigError(f"{name} {error}") from None


def read_upstream(value: Any) -> Server:
    """Return the server of SCHEME://HOST[:PORT] or HOST:PORT."""
    # A bare word is a mistake more often than a host, and the proxy would wait for it in vain.
    return read_server(converters.text(value), port=None)


@dataclass(frozen=True, slots=True)
class Listener(_Endpoint):
    """An address for clients, as one `--listen` names it; port 0 is one that the system chooses.

    proxy_protocol: the networks of load balancers, whose connections begin with a PROXY protocol header.
    """

    proxy_protocol: tuple[IPv4Network | IPv6Network, ...] = ()

    def __str__(self) -> str:
        networks = ",".join(map(str, self.proxy_protocol))
        # No super(): it does not know a class that was made anew for its slots.
        return _Endpoint.__str__(self) + (f"?proxy_protocol={networks}" if networks else "")


def read_listener(value: Any) -> Listener:
    """Return the listener of [SCHEME://]HOST:PORT[?proxy_protocol=NETWORK,...], perhaps without a host."""
    text, question, query = converters.text(value).partition("?")
    scheme = text.partition("://")[0] if "://" in text else SCHEMES[0]
    address = parse_address(text, port=None, schemes=SCHEMES)
    return Listener(address, scheme, _networks(query) if question else ())


def parse_listener(text: str, name: str) -> Listener:
    """Return the listener of an address for clients; name: of the option, for errors.  Raises ConfigError."""
    try:
        return read_listener(text)
    except ValueError as error:
        raise ConfigError(f"{name} {error}") from None


def _networks(query: str) -> tuple[IPv4Network | IPv6Network, ...]:
    name, _, written = query.partition("=")
    try:
        networks = tuple(ip_network(one.strip()) for one in written.split(","))
    except ValueError:
        networks = ()
    if name != "proxy_protocol" or not networks:
        example = "?proxy_protocol=10.0.0.0/8,192.168.1.5"
        raise ValueError(f"may end with the networks of load balancers, as in {example}, not with {query!r}")
    return networks


@dataclass(frozen=True, slots=True)
class HttpListener:
    """An address for HTTP: one of TCP, or the path of a unix socket.

    cert, key: of its TLS, PEM; None for none.
    """

    address: Address | Path
    cert: Path | None = None
    key: Path | None = None

    def __str__(self) -> str:
        return f"{_UNIX}{self.address}" if isinstance(self.address, Path) else str(self.address)

    @property
    def local(self) -> bool:
        """True if only this machine reaches it."""
        if isinstance(self.address, Path) or self.address.host == "localhost":
            return True
        return is_ip(self.address.host) and ip_address(self.address.host).is_loopback


def read_http_listener(value: Any) -> HttpListener:
    """Return the listener of HOST:PORT, with loopback for no host, or of unix:PATH."""
    text = converters.line(value)
    if text.startswith(_UNIX):
        return HttpListener(converters.path(text.removeprefix(_UNIX)))
    return HttpListener(parse_address(text, host="127.0.0.1", port=None, schemes=("http",)))


LISTENER: Final = ValueType(read_listener, "HOST:PORT")
UPSTREAM: Final = ValueType(read_upstream, "nats://HOST:PORT")
HTTP: Final = ValueType(read_http_listener, "HOST:PORT")
HTTP_OR_UNIX: Final = ValueType(read_http_listener, "HOST:PORT|unix:PATH")
