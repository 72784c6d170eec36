"""The options of a socket by which the kernel finds a peer that vanished without a word, within minutes."""

from __future__ import annotations

import socket
import sys
from typing import Final

_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
"""Seconds of silence, seconds between probes, and their number: nats-server's own, as of all Go programs."""
UNACKNOWLEDGED = 150_000
"""The longest time (ms) that a peer may leave bytes without an acknowledgement: as long as the probes take.

The kernel probes no connection with bytes on their way: it would repeat those for a quarter of an hour.
"""


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel end a connection whose peer is gone.  Raises OSError where it is gone already."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED)
