"""TCP_INFO: facts of a connection that the kernel keeps anyway, so that the traffic path need not."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final, NamedTuple

_FIELDS: Final = struct.Struct("=44x I 4x I 12x I")  # last_data_sent, last_data_recv, rtt of Linux's tcp_info


class TcpInfo(NamedTuple):
    """rtt: the round trip to the peer, as the kernel smooths it.  idle: the time without data.  In ns."""

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
