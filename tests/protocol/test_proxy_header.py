"""The header of the PROXY protocol: read in pieces, hostile ones, and written."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.addresses import Address
from natsproxy.protocol.proxy_header import LONGEST, ProxyHeader, read, write

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
PORTS = st.integers(0, 65535)
FOUR = st.builds(Address, st.ip_addresses(v=4).map(str), PORTS)
SIX = st.builds(Address, st.integers(1 << 48, (1 << 128) - 1).map(IPv6Address).map(str), PORTS)
PAIRS = st.one_of(st.tuples(FOUR, FOUR), st.tuples(SIX, SIX))


def whole(stream: bytes, sizes: list[int] | None = None) -> tuple[ProxyHeader, bytes]:
    """Return the header and the rest, as a reader of a socket takes them: never more than asked for.

    sizes: the most bytes of each receive; the last one counts for all that follow.
    """
    data, sizes = b"", list(sizes or [1 << 20])
    while isinstance(found := read(data), int):
        assert found > 0
        most = min(found, sizes.pop(0) if len(sizes) > 1 else sizes[0])
        piece = stream[len(data) : len(data) + most]
        assert piece, "the reader waits for more than there is"
        data += piece
    return found, stream[len(data) :]


@given(PAIRS, st.sampled_from((1, 2)), st.lists(st.integers(1, 9), min_size=1), st.binary(max_size=20))
def test_what_is_written_is_read_wherever_it_is_split(
    ends: tuple[Address, Address], version: int, sizes: list[int], rest: bytes
) -> None:
    """And no byte behind the header is taken."""
    stream = write(version, *ends) + rest
    assert whole(stream, sizes) == (ProxyHeader(*ends), rest)


@given(st.sampled_from((1, 2)), st.lists(st.integers(1, 9), min_size=1), st.binary(max_size=20))
def test_a_header_without_a_client(version: int, sizes: list[int], rest: bytes) -> None:
    """A health check of the load balancer."""
    assert whole(write(version) + rest, sizes) == (ProxyHeader(), rest)
    assert whole(write(version, Address("a-name", 1), Address("::1", 1))) == (ProxyHeader(), b"")


@given(st.binary(max_size=64), st.sampled_from((b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"!")))
def test_any_bytes_are_a_header_or_refused(rest: bytes, begin: bytes) -> None:
    """No other exception, no endless wait."""
    data = b""
    for byte in begin + rest:
        data += bytes((byte,))
        try:
            found = read(data)
        except ValueError:
            return
        if isinstance(found, ProxyHeader):
            return
        assert 0 < found <= LONGEST


def v2(command: int, family: int, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return SIGNATURE + bytes((command, family)) + size.to_bytes(2, "big") + body


FOURS = IPv4Address("192.0.2.1").packed + IPv4Address("192.0.2.2").packed + b"\x00\x07\x10\x7e"
SIXES = IPv6Address("2001:db8::1").packed + IPv6Address("::ffff:192.0.2.2").packed + b"\x00\x07\x10\x7e"


@pytest.mark.parametrize(
    ("data", "source", "destination"),
    [
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 7 4222\r\n", "192.0.2.1", "192.0.2.2"),
        (b"PROXY TCP6 2001:db8::1 ::1 7 4222\r\n", "2001:db8::1", "::1"),
        (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 7 4222\r\n", "192.0.2.1", "::1"),
        (b"PROXY TCP6 " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 7 4222\r\n", "f" * 4, "f" * 4),
        (v2(0x21, 0x11, FOURS), "192.0.2.1", "192.0.2.2"),
        (v2(0x21, 0x21, SIXES), "2001:db8::1", "192.0.2.2"),
        (v2(0x21, 0x11, FOURS + b"\x02\x00\x03abc\x04\x00\x00"), "192.0.2.1", "192.0.2.2"),
    ],
)
def test_headers_of_both_versions(data: bytes, source: str, destination: str) -> None:
    """The addresses of IPv4 have one form; extensions are passed over."""
    found, rest = whole(data + b"CONNECT")
    assert rest == b"CONNECT"
    assert found.source is not None
    assert found.destination is not None
    assert found.source.host.startswith(source)
    assert found.destination.host.startswith(destination)
    assert (found.source.port, found.destination.port) == (7, 4222)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN 192.0.2.1 192.0.2.2 7 4222\r\n",
        v2(0x20, 0x00, b""),
        v2(0x20, 0x31, b"anything"),
        v2(0x21, 0x00, b""),
    ],
)
def test_headers_that_name_nobody(data: bytes) -> None:
    """The connection is the load balancer's own."""
    assert whole(data + b"PING") == (ProxyHeader(), b"PING")


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"CONNECT {}\r\n", "not a PROXY"),
        (b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n", "not a PROXY"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n", "CRLF"),
        (b"PROXY TCP4 1.2.3.4\r1.2.3.4 1 1\r\n", "CRLF"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "not TCP4 or TCP6"),
        (b"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n", "not TCP4 or TCP6"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n", "not TCP4 or TCP6"),
        (b"PROXY TCP4 ::1 ::1 1 1\r\n", "not TCP4"),
        (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n", "not TCP6"),
        (b"PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n", "not TCP4"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n", "not TCP6"),
        (b"PROXY TCP4 \xd9\xa1.2.3.4 1.2.3.4 1 1\r\n", "not TCP4"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n", "port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n", "port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n", "port"),
        (b"PROXY TCP4 " + b"1" * 200, "107"),
        (SIGNATURE + b"\x11\x11\x00\x0c" + FOURS, "version 1"),
        (v2(0x22, 0x11, FOURS), "command 2"),
        (v2(0x21, 0x12, FOURS), "not TCP"),
        (v2(0x21, 0x31, b"x" * 216), "not TCP"),
        (v2(0x21, 0x11, FOURS[:-1]), "too short"),
        (v2(0x21, 0x21, FOURS), "too short"),
        (v2(0x21, 0x11, FOURS, 65535), "65551 bytes"),
        (v2(0x21, 0x11, FOURS + b"\x02\x00\x04abc"), "truncated"),
        (v2(0x21, 0x11, FOURS + b"\x02\x00"), "truncated"),
    ],
)
def test_hostile_headers_are_refused(data: bytes, clause: str) -> None:
    """With a clause that says why."""
    with pytest.raises(ValueError, match=clause):
        whole(data)


def test_two_families_become_one() -> None:
    """An address of IPv4 is written as one of IPv6 beside another such."""
    assert write(1, Address("192.0.2.1", 7), Address("::1", 8)) == b"PROXY TCP6 ::ffff:c000:201 ::1 7 8\r\n"
    assert write(1, Address("fe80::1%eth0", 7), Address("::1", 8)) == b"PROXY TCP6 fe80::1 ::1 7 8\r\n"
