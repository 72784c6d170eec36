"""The header of the PROXY protocol, versions 1 and 2: a load balancer's statement of its client's address.

It comes before all other bytes of a connection, TLS included.  A reader must not consume a byte after it:
`read` says how many more bytes certainly belong to it.  A header that says nothing about a client ("UNKNOWN",
"LOCAL") is a health check of the load balancer itself.

Headers about other transports than TCP, with leading zeros, or longer than `LONGEST` are refused.  The
extensions (TLVs) of version 2 are checked for their lengths and otherwise ignored.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from natsproxy.addresses import MAX_PORT, Address

LONGEST: Final = 1024
"""The most bytes of a header of version 2; those of version 1 are in its specification."""
_LONGEST_LINE: Final = 107
_SHORTEST_LINE: Final = len(b"PROXY UNKNOWN\r\n")
_LINE: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED: Final = 16  # bytes of a header of version 2 before the addresses
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6, _UNSPEC = 0x11, 0x21, 0x00
_ADDRESSES: Final = {_TCP4: 4, _TCP6: 16, _UNSPEC: 0}  # bytes of one address
_FAMILIES: Final[dict[bytes, type[IPv4Address] | type[IPv6Address]]] = {
    b"TCP4": IPv4Address,
    b"TCP6": IPv6Address,
}

_IP = IPv4Address | IPv6Address


class ProxyHeader(NamedTuple):
    """Both ends of a client's connection; None where the header names none."""

    source: Address | None = None
    destination: Address | None = None


def read(data: bytes) -> ProxyHeader | int:
    """Return the header, or the least number of bytes that are still missing.

    data: the first bytes of a connection, none beyond the header.  Raises ValueError with the reason.
    """
    if not data:
        return _SHORTEST_LINE
    if data[: len(_SIGNATURE)] == _SIGNATURE[: len(data)]:
        return _FIXED - len(data) if len(data) < _FIXED else _binary(data)
    if data[: len(_LINE)] == _LINE[: len(data)]:
        return _line(data)
    raise ValueError("the first bytes are not a PROXY protocol header")


# -- version 1


def _line(data: bytes) -> ProxyHeader | int:
    if data.endswith(b"\r\n"):
        return _fields(data[:-2].split(b" "))
    if b"\n" in data or b"\r" in data[:-1]:
        raise ValueError("a PROXY line that does not end with CRLF")
    if len(data) >= _LONGEST_LINE:
        raise ValueError(f"a PROXY line of more than {_LONGEST_LINE} bytes")
    return max(1 if data.endswith(b"\r") else 2, _SHORTEST_LINE - len(data))


def _fields(words: list[bytes]) -> ProxyHeader:
    if words[1] == b"UNKNOWN":  # the rest of the line means nothing, says the specification
        return ProxyHeader()
    family = _FAMILIES.get(words[1])
    if family is None or len(words) != 6:
        raise ValueError("a PROXY line that is not TCP4 or TCP6 with two addresses and two ports")
    try:
        source, destination = (_ip(family(word.decode("ascii"))) for word in words[2:4])
    except ValueError:
        raise ValueError(f"a PROXY line with an address that is not {words[1].decode()}") from None
    return ProxyHeader(Address(source, _port(words[4])), Address(destination, _port(words[5])))


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or (word[:1] == b"0" and word != b"0") or int(word) > MAX_PORT:
        raise ValueError("a PROXY line with an invalid port")
    return int(word)


# -- version 2


def _binary(data: bytes) -> ProxyHeader | int:
    command, family = data[12], data[13]
    length = int.from_bytes(data[14:16], "big")
    if command not in (_LOCAL, _PROXY):
        raise ValueError(f"a PROXY header of version {command >> 4}, command {command & 15}")
    if _FIXED + length > LONGEST:
        raise ValueError(f"a PROXY header of {_FIXED + length} bytes; {LONGEST} are allowed")
    if command == _PROXY and family not in _ADDRESSES:
        raise ValueError("a PROXY header about a connection that is not TCP")
    size = _ADDRESSES[family] if command == _PROXY else 0
    addresses = 2 * size + 4 if size else 0
    if length < addresses:
        raise ValueError("a PROXY header that is too short for its addresses")
    if len(data) < _FIXED + length:
        return _FIXED + length - len(data)
    body = data[_FIXED : _FIXED + addresses]
    if command == _PROXY:
        _check_extensions(data[_FIXED + addresses :])
    if not size:
        return ProxyHeader()
    ports = (int.from_bytes(body[at : at + 2], "big") for at in (2 * size, 2 * size + 2))
    hosts = (ip_address(body[at : at + size]) for at in (0, size))
    return ProxyHeader(*(Address(_ip(host), port) for host, port in zip(hosts, ports, strict=True)))


def _check_extensions(rest: bytes) -> None:
    while rest:
        end = 3 + int.from_bytes(rest[1:3], "big")
        if len(rest) < max(3, end):
            raise ValueError("a PROXY header with a truncated extension")
        rest = rest[end:]


def _ip(host: _IP) -> str:
    """Return an address as text, those of IPv4 in one form.  Raises ValueError for an address with a zone."""
    if isinstance(host, IPv6Address):
        if host.scope_id is not None:
            raise ValueError("an address with a zone")
        host = host.ipv4_mapped or host
    return str(host)


# -- writing


def write(version: int, source: Address | None = None, destination: Address | None = None) -> bytes:
    """Return a header about a client's connection; without addresses, one that names no client."""
    ends = _same_family(source, destination)
    if ends is None or source is None or destination is None:
        return b"PROXY UNKNOWN\r\n" if version == 1 else _SIGNATURE + bytes((_LOCAL, _UNSPEC, 0, 0))
    here, there = ends
    if version == 1:
        return f"PROXY TCP{here.version} {here} {there} {source.port} {destination.port}\r\n".encode()
    body = here.packed + there.packed + source.port.to_bytes(2, "big") + destination.port.to_bytes(2, "big")
    family = _TCP4 if here.version == 4 else _TCP6
    return _SIGNATURE + bytes((_PROXY, family)) + len(body).to_bytes(2, "big") + body


def _same_family(source: Address | None, destination: Address | None) -> tuple[_IP, _IP] | None:
    """Return both hosts as addresses of one family; None where one is unknown or no IP address."""
    if source is None or destination is None:
        return None
    try:
        here, there = (ip_address(each.host.partition("%")[0]) for each in (source, destination))
    except ValueError:
        return None
    if here.version == there.version:
        return here, there
    return _mapped(here), _mapped(there)


def _mapped(host: _IP) -> IPv6Address:
    return host if isinstance(host, IPv6Address) else IPv6Address(f"::ffff:{host}")
