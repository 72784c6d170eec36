"""The handshake of a client of ours with a NATS server: both playbacks connect through it.

The server speaks first: INFO, then our CONNECT and PING, then its PONG (an -ERR in its place refuses us).
Bytes that follow the PONG in the same read belong to the traffic and are handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError
from natsproxy.net.leg import Leg, LegLost
from natsproxy.protocol import gojson
from natsproxy.replay.errors import ReplayError
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Scanner

TIMEOUT: Final = 10.0
"""Seconds for a connection and its handshake."""

UNLIMITED: Final = 1 << 30
"""Bytes that a scanner may hold: more than any frame has."""

ConnectArguments = Callable[[dict[str, Any]], bytes]
"""Makes the JSON of a CONNECT from the server's INFO, whose keys are folded to lower case."""


async def open_connection(address: Address, connect_arguments: ConnectArguments) -> tuple[Leg, bytes]:
    """Connect to a server; return the leg and the bytes that followed its first PONG.

    Raises ConfigError where nobody listens, the peer does not speak NATS, requires TLS or refuses us;
    ReplayError after `TIMEOUT` seconds; LegLost when the connection breaks.
    """
    leg: Leg | None = None
    connected = False
    try:
        with trio.fail_after(TIMEOUT):
            leg = await _dial(address)
            early = await _shake_hands(leg, address, connect_arguments)
        connected = True
    except trio.TooSlowError:
        raise ReplayError(f"nats://{address} gave no INFO and PONG within {TIMEOUT:g} s") from None
    finally:
        if leg is not None and not connected:
            leg.close()
    return leg, early


async def receive(leg: Leg) -> bytes:
    """Return the next bytes of a leg, `b""` at its end.  Raises LegLost when the connection breaks."""
    while (data := leg.try_receive()) is None:
        await leg.wait_readable()
    return data


async def _dial(address: Address) -> Leg:
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot connect to nats://{address}: {reason}") from None
    return Leg.from_stream(stream)


async def _shake_hands(leg: Leg, address: Address, connect_arguments: ConnectArguments) -> bytes:
    # No limits: the user chose this server, and its frames may be as large as it likes.
    scanner = Scanner(S2C, EVERYTHING, buffer_limit=UNLIMITED, hold=UNLIMITED)
    greeted = False
    while True:
        data = await receive(leg)
        if not data:
            raise LegLost(leg, "the server closed it during the handshake")
        scanner.feed(data)
        while (frame := scanner.next()) is not None:
            if not isinstance(frame, Frame):
                raise ConfigError(f"nats://{address} does not speak NATS")
            # A server in lame duck mode or a cluster may send INFO again at once: only the first is answered.
            if frame.op == Op.INFO and not greeted:
                greeted = True
                info = {gojson.fold(key): value for key, value in gojson.load_pairs(frame.args) or ()}
                if info.get("tls_required"):
                    raise ConfigError(f"nats://{address} requires TLS: name it tls://{address}")
                leg.write(encode.connect(connect_arguments(info)) + encode.PING)
            elif frame.op == Op.ERR:
                text = frame.args.decode(errors="replace")
                raise ConfigError(f"nats://{address} refused a connection: {text}")
            elif frame.op == Op.PONG:
                return scanner.rest()
