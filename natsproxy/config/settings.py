"""The settings of a proxy, typed and with their defaults: the only configuration that `net` sees.

Durations are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Any

from natsproxy.addresses import Address, is_ip
from natsproxy.capture.filter.recording_filter import Selection
from natsproxy.session.identity import Identity
from natsproxy.units import KIB, MIB, SECOND, format_duration, format_size

SCHEMES = ("nats", "tls", "ws", "wss")
"""The schemes of `--listen` and `--upstream`; an address without one has the first."""
_ANY_PORT = Address()


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


@dataclass(frozen=True, slots=True)
class HttpListener:
    """An address for HTTP: one of TCP, or the path of a unix socket.

    cert, key: of its TLS, PEM; None for none.
    """

    address: Address | Path
    cert: Path | None = None
    key: Path | None = None

    def __str__(self) -> str:
        return f"unix:{self.address}" if isinstance(self.address, Path) else str(self.address)

    @property
    def local(self) -> bool:
        """True if only this machine reaches it."""
        if isinstance(self.address, Path) or self.address.host == "localhost":
            return True
        return is_ip(self.address.host) and ip_address(self.address.host).is_loopback


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The HTTP servers beside a proxy; None for none.

    token: that requests to the admin API must bring, "" for none.  hosts: further names of the admin API and
    of Toxiproxy's.  captures: the folder of the captures that it begins, None for none.  toxiproxy: of
    Toxiproxy's API.
    """

    monitor: HttpListener | None = None
    admin: HttpListener | None = None
    token: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()
    captures: Path | None = None
    toxiproxy: HttpListener | None = None


AUTO_FALLBACK = 50 * SECOND // 1000
"""The fallback delay of `handshake_first: auto` (ns)."""


@dataclass(frozen=True, slots=True)
class HandshakeFirst:
    """TLS before INFO.  fallback: the time (ns) after which INFO goes to a silent client; 0 for never."""

    fallback: int = 0

    def __str__(self) -> str:
        return format_duration(self.fallback) if self.fallback else "on"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of TLS: of tls:// listeners, and the last two of both legs.

    ca: of the certificates that clients must have; None where they need none.  handshake_first: None for TLS
    after INFO.  timeout: of a client's handshake (ns).  allow_non_tls: it is offered, and clients may do
    without it.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    handshake_first: HandshakeFirst | None = None
    timeout: int = 2 * SECOND
    min_version: str = "1.2"
    ciphers: str | None = None
    allow_non_tls: bool = False


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """The settings of TLS with servers.

    cert, key: our own, for servers that want one.  ca: None for the system's.  name: the name that
    certificates must have; None for the host of the server.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    name: str | None = None
    handshake_first: bool = False
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """The most that a recording keeps: bytes, segments, and the age (ns) of a segment; 0 for no limit.

    The segment that is being written counts for size and count.
    """

    size: int = 0
    count: int = 0
    age: int = 0

    def __bool__(self) -> bool:
        return bool(self.size or self.count or self.age)

    def __str__(self) -> str:
        parts = [format_size(self.size) + "B" * (self.size % KIB > 0)] if self.size else []
        parts += [str(self.count)] if self.count else []
        return ", ".join(parts + ([format_duration(self.age)] if self.age else []))


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The settings of a recording.

    path: a file `x.ncap`, or a folder for segments.
    rotate_size (bytes), rotate_interval (ns): limits of a segment; 0 for none.
    keep: the limits beyond which the oldest segments are deleted (see `net/retention.py`).
    flush: the longest time (ns) that a record waits for its block to be sealed.
    compression: "none" or "zstd".
    frame_max: the most bytes kept of one frame.
    queue: the most bytes that wait for the disk.
    overflow: the reaction to a full queue: "gap", "wait" or "close" (see `net/recorder.py`).
    wait: the longest time (ns) that "wait" holds traffic back.
    selection: the connections and subjects that are recorded, and the policies for their payloads.
    cassette: the options of the comparison that a cassette keeps, as plain data.
    """

    path: Path
    rotate_size: int = 256 * MIB
    rotate_interval: int = 0
    keep: Keep = Keep()
    flush: int = SECOND // 4
    compression: str = "none"
    frame_max: int = 8 * MIB
    queue: int = 64 * MIB
    overflow: str = "gap"
    wait: int = 10 * SECOND
    selection: Selection = field(default_factory=Selection)
    cassette: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Return the settings that a segment's header has."""
        found = {"compression": self.compression, "frame_max": self.frame_max, **self.selection.described()}
        cassette = {**self.cassette, **self.selection.filters.described()}
        return {**found, "cassette": cassette} if cassette else found


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The settings of a proxy; `config/options.py` describes each under its option's name.

    One name differs: queue_bytes is the option `queue`.  identity: its login at servers, None for none.
    client_users: bcrypt hashes by user.  identity_files: both were read from them.  upstream_proxy_protocol:
    the version of the header that servers get, None for none.
    """

    listen: tuple[Listener, ...] = (Listener(Address("127.0.0.1", 4222)),)
    upstream: tuple[Server, ...] = (Server(Address("127.0.0.1", 4223)),)
    advertise: str = "strip"
    upstream_hold: int = 0
    upstream_randomize: bool = True
    upstream_discover: bool = False
    unparsed: str = "close"
    websocket_origin: tuple[str, ...] = ()
    max_control_line: int = 4096
    rule_buffer: int = 8 * MIB
    queue_bytes: int = 8 * MIB
    buffers: int = 256 * MIB
    connect_timeout: int = 2 * SECOND
    auth_timeout: int = 2 * SECOND
    max_connections: int = 0
    max_connections_per_address: int = 0
    idle_timeout: int = 0
    write_deadline: int = 10 * SECOND
    drain: int = 30 * SECOND
    keepalive: bool = True
    tls: TlsSettings = TlsSettings()
    upstream_tls: UpstreamTls = UpstreamTls()
    seed: int | None = None
    identity: Identity | None = None
    upstream_proxy_protocol: int | None = None
    identity_files: tuple[Path, ...] = ()
    client_users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    record: RecordSettings | None = None

    def certificate_files(self) -> list[Path]:
        """Return the files of TLS, of both legs."""
        both: tuple[TlsSettings | UpstreamTls, ...] = (self.tls, self.upstream_tls)
        return [file for one in both for file in (one.cert, one.key, one.ca) if file is not None]
