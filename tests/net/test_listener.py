"""The addresses that a listener stands for: a wildcard takes IPv4 and IPv6, as nats-server's does."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Listener, read_listener
from natsproxy.errors import ConfigError
from natsproxy.net.listener import local_address, open_listeners

WILDCARDS = ["0.0.0.0:0", "[::]:0", ":0"]


def has_ipv6() -> bool:
    """Tell whether this machine has an IPv6 loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@contextmanager
def opened(sockets: list[tuple[socket.socket, Listener]]) -> Iterator[list[Address]]:
    try:
        yield [local_address(one) for one, _ in sockets]
    finally:
        for one, _ in sockets:
            one.close()


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("written", WILDCARDS)
async def test_a_wildcard_takes_both_families(written: str) -> None:
    """On one port, also where the system chooses it."""
    with opened(await open_listeners([read_listener(written)])) as addresses:
        port = addresses[0].port
        assert addresses == [Address("0.0.0.0", port), Address("::", port)]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port)):
                pass


@pytest.mark.parametrize("written", WILDCARDS)
@pytest.mark.parametrize("absent", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
async def test_a_wildcard_takes_the_family_that_there_is(
    written: str, absent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = socket.socket.bind

    class WithoutIpv6(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(absent, "no IPv6")
            bound(self, address)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    with opened(await open_listeners([read_listener(written)])) as addresses:
        assert [address.host for address in addresses] == ["0.0.0.0"]


async def test_a_wildcard_whose_port_is_taken_in_one_family_is_refused() -> None:
    """Half of the clients would come to another program."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on \[::\]:{port}: Address already in use"):
            await open_listeners([read_listener(f"[::]:{port}")])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_address_and_a_name_are_what_they_say(host: str) -> None:
    with opened(await open_listeners([read_listener(f"{host}:0")])) as addresses:
        assert {address.host for address in addresses} <= {"127.0.0.1", "::1"}
        assert len({address.port for address in addresses}) == 1
