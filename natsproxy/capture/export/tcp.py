"""A connection of a capture as TCP packets that were never sent, for tools that show packets.

A capture has frames but no packets.  So a `TcpConnection` synthesizes them: Ethernet, IP and TCP headers, a
handshake, one segment per piece of data, an ACK whenever enough is unacknowledged, and an end by FIN or RST.
The addresses are those of the client and of the upstream.  Sequence numbers count the true bytes.
Where the length of data is known but not its content (payloads that were not kept, traffic that was not
framed), its first packet is marked as truncated by the capture; the bytes beyond that packet are a gap in the
sequence numbers, as if the tool had lost packets.

Checksums are valid.  The ones' complement sum of 16-bit words equals the whole bytes as one big number modulo
65,535, because 65,536 is 1 modulo 65,535: so one division computes it (RFC 1071).  The headers follow RFC
791, 8200, 9293 and 7323.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from natsproxy.addresses import NATS_PORT, split_host_port
from natsproxy.wire.ops import C2S, S2C, Direction

SEGMENT: Final = 1 << 15
"""The most data in one packet, bytes: below the 65,535 of an IPv4 packet."""
ACK_AFTER: Final = 1 << 16
"""The most bytes that may be unacknowledged."""

_FIN, _SYN, _RST, _PUSH, _ACK = 1, 2, 4, 8, 16
_WINDOW = 65_535
_OPTIONS = struct.pack(">BBHBBBB", 2, 4, SEGMENT, 1, 3, 3, 14)  # greatest segment; window scale 14: 1 GiB
_TCP = struct.Struct(">HHIIBBHHH")
_ETHERNET = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")  # locally administered
_WRAP = 0xFFFFFFFF


class Packet(NamedTuple):
    """The known bytes of a packet, and its true length."""

    data: bytes
    length: int


class TcpEndpoint(NamedTuple):
    """An address of 4 or 16 bytes, and a port."""

    address: bytes
    port: int


def endpoints(client: str, server: str, conn: int) -> tuple[TcpEndpoint, TcpEndpoint]:
    """Return the two ends of a connection, of one address family, from `host:port` as captures have them.

    An unknown client and a server with a name get made-up addresses, from the networks reserved
    for benchmarks (198.18.0.0/15) and for documentation (192.0.2.0/24): no real host has them.
    """
    host, port = split_host_port(client)
    near, near_port = _address(host), port
    if near is None:
        near = ipaddress.ip_address((198 << 24) + (18 << 16) + conn % (1 << 17))
        near_port = 1024 + (conn >> 17) % 64_000
    host, port = split_host_port(server)
    far = _address("127.0.0.1" if host == "localhost" else host)
    if far is None:
        far = ipaddress.ip_address((192 << 24) + (2 << 8) + 1 + zlib.crc32(host.encode()) % 254)
    one, other = near.packed, far.packed
    if len(one) != len(other):
        one, other = _mapped(one), _mapped(other)
    return TcpEndpoint(one, near_port), TcpEndpoint(other, port or NATS_PORT)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return found if found.version == 4 else found.ipv4_mapped or found


def _mapped(address: bytes) -> bytes:
    return address if len(address) == 16 else bytes(10) + b"\xff\xff" + address


class _Side:
    """One end of a connection: the constant part of its packets, and its sequence number."""

    def __init__(self, here: TcpEndpoint, there: TcpEndpoint, ethernet: bytes, start: int) -> None:
        self.ports = here.port, there.port
        self.sent = self.confirmed = start
        self._pair = here.address + there.address
        self._six = len(here.address) == 16
        self._ethernet = ethernet + (b"\x86\xdd" if self._six else b"\x08\x00")
        self._sum = int.from_bytes(self._pair) + 6  # of the addresses and the protocol, TCP

    def headers(self, size: int) -> bytes:
        """Return the Ethernet and IP headers of a TCP segment of `size` bytes."""
        if self._six:
            return self._ethernet + struct.pack(">IHBB", 6 << 28, size, 6, 64) + self._pair
        length = size + 20
        # Version 4 with 5 words of header; the length; don't fragment; 64 hops and TCP; both addresses.
        fixed = 0x4500 + length + 0x4000 + 0x4006 + self._sum - 6
        checksum = 0xFFFF - fixed % 0xFFFF
        return (
            self._ethernet + struct.pack(">HHHHHH", 0x4500, length, 0, 0x4000, 0x4006, checksum) + self._pair
        )

    def checksum(self, segment: bytes) -> int:
        """Return the checksum of a segment whose own field for it is 0."""
        words = int.from_bytes(segment if len(segment) % 2 == 0 else segment + b"\0")
        return 0xFFFF - (words + self._sum + len(segment)) % 0xFFFF


class TcpConnection:
    """One TCP connection.  number: the seed of its sequence numbers, unlike that of any other connection."""

    def __init__(self, client: TcpEndpoint, server: TcpEndpoint, number: int) -> None:
        start = zlib.crc32(number.to_bytes(16, "big", signed=True))
        away, back = _ETHERNET[1] + _ETHERNET[0], _ETHERNET[0] + _ETHERNET[1]
        self._sides = (_Side(client, server, away, start), _Side(server, client, back, start ^ 0x5A5A5A5A))

    def open(self) -> Iterator[Packet]:
        """Yield the handshake."""
        yield self._packet(C2S, _SYN, _OPTIONS)
        self._sides[C2S].sent += 1
        yield self._packet(S2C, _SYN | _ACK, _OPTIONS)
        self._sides[S2C].sent += 1
        yield self._packet(C2S, _ACK)

    def send(self, direction: Direction, data: bytes, length: int) -> Iterator[Packet]:
        """Yield the packets of data whose true length is `length`, and an ACK if one is due."""
        side = self._sides[direction]
        end = side.sent + max(length, len(data))
        for at in range(0, max(len(data), length > 0), SEGMENT):
            piece = data[at : at + SEGMENT]
            size = min(end - side.sent, SEGMENT)
            yield self._packet(direction, _PUSH | _ACK, data=piece, hidden=size - len(piece))
            side.sent += size
        side.sent = end
        if side.sent - side.confirmed >= ACK_AFTER:
            yield self._packet(direction.opposite, _ACK)

    def close(self, first: Direction, *, reset: bool) -> Iterator[Packet]:
        """Yield the end, begun by the sender of direction `first`: RST, or FIN from both."""
        if reset:
            yield self._packet(first, _RST | _ACK)
            return
        for direction in (first, first.opposite):
            yield self._packet(direction, _FIN | _ACK)
            self._sides[direction].sent += 1
        yield self._packet(first, _ACK)

    def _packet(
        self, direction: Direction, flags: int, options: bytes = b"", data: bytes = b"", hidden: int = 0
    ) -> Packet:
        """Return a packet.  hidden: the number of unknown bytes after the data."""
        side, other = self._sides[direction], self._sides[direction.opposite]
        number = other.sent & _WRAP if flags & _ACK else 0
        other.confirmed = other.sent
        head = 5 + len(options) // 4 << 4
        size = _TCP.size + len(options) + len(data) + hidden
        fields = [*side.ports, side.sent & _WRAP, number, head, flags, _WINDOW, 0, 0]
        if not hidden:  # no checksum without the missing bytes; readers see a truncated packet
            fields[7] = side.checksum(_TCP.pack(*fields) + options + data)
        raw = side.headers(size) + _TCP.pack(*fields) + options + data
        return Packet(raw, len(raw) + hidden)
