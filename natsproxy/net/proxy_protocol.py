"""The steps of the PROXY protocol: its header before a client's bytes, and before ours to a server."""

from __future__ import annotations

from ipaddress import ip_address

import trio

from natsproxy.addresses import Address, split_host_port
from natsproxy.config.endpoints import Listener
from natsproxy.net.leg import Leg
from natsproxy.protocol.proxy_header import ProxyHeader, read, write


class BadHeader(Exception):
    """A client leg does not begin with a header; the text is the reason."""


def expected(listener: Listener, peer: str) -> bool:
    """Tell whether a connection begins with a header: those from the networks that the listener names.

    Others are clients without a load balancer, and may not claim an address.
    """
    if not listener.proxy_protocol:
        return False
    try:
        address = ip_address(split_host_port(peer)[0].partition("%")[0])
    except ValueError:  # it has left already
        return False
    return any(address in network for network in listener.proxy_protocol)


async def receive_header(leg: Leg, limit: float) -> ProxyHeader:
    """Receive the header, and no byte behind it.  limit: in seconds.  Raises BadHeader and LegLost."""
    data = b""
    with trio.move_on_after(limit):
        while True:
            try:
                found = read(data)
            except ValueError as error:
                raise BadHeader(str(error)) from None
            if isinstance(found, ProxyHeader):
                return found
            while (more := leg.try_receive(found)) is None:
                await leg.wait_readable()
            if not more:
                raise BadHeader("the connection ended before its PROXY header")
            data += more
    raise BadHeader("no PROXY header came in the auth time-out")


def header(version: int, client: str, dialled: Address) -> bytes:
    """Return the header for a server leg.  client: the client's address as `host:port`."""
    host, port = split_host_port(client)
    return write(version, Address(host, port), dialled)
