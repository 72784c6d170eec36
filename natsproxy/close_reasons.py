"""Reasons why connections end: short names, the same in events, logs and captures.

Session, listener, limits, recorder and operators all end connections, each for reasons of its own.
"""

from __future__ import annotations

from typing import Final

CLIENT_CLOSED: Final = "client-closed"
SERVER_CLOSED: Final = "server-closed"
CLIENT_LOST: Final = "client-lost"
SERVER_LOST: Final = "server-lost"
CLIENT_PROTOCOL: Final = "client-protocol"
SERVER_PROTOCOL: Final = "server-protocol"
MID_FRAME: Final = "mid-frame"
UPSTREAM_DOWN: Final = "upstream-down"
REFUSED: Final = "refused"
UNAUTHORIZED: Final = "unauthorized"
STALLED: Final = "stalled"
LIMIT: Final = "limit"
IDLE: Final = "idle"
SLOW: Final = "slow"
RULE: Final = "rule"
RULE_FAILED: Final = "rule-failed"
DRAINED: Final = "drained"
KILLED: Final = "killed"
INTERNAL: Final = "internal"
RECORDER: Final = "recorder"

ALL: Final = (
    CLIENT_CLOSED,
    SERVER_CLOSED,
    CLIENT_LOST,
    SERVER_LOST,
    CLIENT_PROTOCOL,
    SERVER_PROTOCOL,
    MID_FRAME,
    UPSTREAM_DOWN,
    REFUSED,
    UNAUTHORIZED,
    STALLED,
    LIMIT,
    IDLE,
    SLOW,
    RULE,
    RULE_FAILED,
    DRAINED,
    KILLED,
    INTERNAL,
    RECORDER,
)
"""All of them."""

BY_SERVER: Final = (SERVER_CLOSED, SERVER_LOST)
"""Connections ended by their server, which may have ended all of its connections."""

LOST: Final = {
    CLIENT_CLOSED: (CLIENT_LOST, CLIENT_PROTOCOL),
    SERVER_CLOSED: (SERVER_LOST, SERVER_PROTOCOL),
}
"""The reasons in place of these where the leg was lost: its TCP connection, or a layer such as TLS."""
