"""INFO on its way to the client, and first bytes that are not NATS.

Clients learn addresses from INFO and dial them later, so every INFO is rewritten: under "strip" the gossip
goes, under "self" the proxy's own addresses take its place, under "pass" it stays.  Its TLS fields are those
of the client leg.  The nonce passes, for nkey and JWT users to sign, unless the proxy logs in itself
(`identity.py`).
"""

from __future__ import annotations

from typing import Any

from natsproxy.protocol.info import Info, parse_info, rewrite_info
from natsproxy.session.actions import SessionSettings
from natsproxy.units import parse_version

_TLS = ("tls_available", "tls_required", "tls_verify")


def refusal(info: Info) -> str | None:
    """Return why a server with this INFO cannot be proxied, as a sentence; None if it can."""
    if info.other_port:
        return f"the upstream is a {info.other_port} port, not a client port: give the server's client port"
    return None


def info_of(greeting: bytes) -> Info | None:
    """Return the INFO of a server's first line; None if it is another line, or does not parse."""
    line, _, _ = greeting.partition(b"\n")
    op, _, args = line.partition(b" ")
    if op.upper() != b"INFO":
        return None
    try:
        return parse_info(args.strip(b" \t\r"))  # as the session reads it again
    except ValueError:
        return None


def rewritten(args: bytes, settings: SessionSettings) -> bytes:
    """Return the arguments of INFO as the client gets them; the very same bytes where nothing changes."""
    remove = {*_TLS} - {*settings.tls}
    change: dict[str, Any] = dict.fromkeys(settings.tls, True)
    if settings.identity is not None:
        hidden, edits = settings.identity.info_edits()
        remove |= hidden
        change |= edits
    if settings.advertise == "pass":
        return rewrite_info(args, remove=remove, set=change)
    if settings.self_port:
        change |= {"host": settings.self_host, "port": settings.self_port}
    remove.add("ws_connect_urls")
    if settings.advertise == "self" and settings.self_urls:
        change["connect_urls"] = list(settings.self_urls)
    else:
        remove.add("connect_urls")
    return rewrite_info(args, remove=remove, set=change)


def lame_duck(args: bytes) -> bytes:
    """Return the arguments of an INFO that says: this connection ends soon."""
    return rewrite_info(args, remove=("nonce",), set={"ldm": True})


_OTHERS = (
    (b"\x16", "a TLS ClientHello: the listener is a plain one, and clients reach it by nats://"),
    (b"GET ", "an HTTP request: WebSocket clients need a ws:// listener"),
    (b"PROXY ", "a PROXY protocol header: it comes from no network that the listener names"),
    (
        b"\r\n\r\n\x00\r\nQUIT\n",
        "a PROXY protocol v2 header: it comes from no network that the listener names",
    ),
    (b"\x10", "an MQTT CONNECT: MQTT is not supported"),
)


def other_protocol(head: bytes) -> str | None:
    """Return the protocol of a client whose first bytes are not NATS, as a clause; None if unknown."""
    return next((name for prefix, name in _OTHERS if head.startswith(prefix)), None)


def clears_subscriptions(version: str) -> bool:
    """True if a second CONNECT drops all subscriptions on this server (2.11.17, 2.12.8, 2.14.0 and later)."""
    release = parse_version(version)
    return release >= (2, 14, 0) or (2, 12, 8) <= release < (2, 13, 0) or (2, 11, 17) <= release < (2, 12, 0)
