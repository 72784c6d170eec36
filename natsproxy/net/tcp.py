"""The kernel's part of a TCP connection: keep-alive, which detects dead peers, and facts (TCP_INFO)."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final, NamedTuple

_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
"""Seconds of silence, seconds between probes, and their number: nats-server's own, as of all Go programs."""
UNACKNOWLEDGED = 150_000
"""The longest time (ms) that a peer may leave bytes without an acknowledgement: as long as the probes take.

The kernel probes no connection with bytes on their way: it would repeat those for a quarter of an hour.
"""


INHERITED: Final = sys.platform == "linux"
"""True where accepted connections have the options of their listener."""


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel end a connection whose peer vanished without closing it, within minutes.

    To a listener it says so of the connections that it accepts, where those inherit that.  Raises OSError
    where the peer is gone already.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED)


_FIELDS: Final = struct.Struct("=44x I 4x I 12x I")  # last_data_sent, last_data_recv, rtt of Linux's tcp_info


class TcpInfo(NamedTuple):
    """Facts that the kernel keeps anyway, so that the traffic path need not.

    rtt: the round trip to the peer, as the kernel smooths it.  idle: the time without data.  In ns.
    """

    rtt: int
    idle: int


def tcp_info(sock: socket.socket) -> TcpInfo | None:
    """Return the facts of an open socket; None for a closed one, and where the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        sent, received, rtt = _FIELDS.unpack(
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _FIELDS.size)
        )
    except (OSError, struct.error):
        return None
    return TcpInfo(rtt * 1_000, min(sent, received) * 1_000_000)
