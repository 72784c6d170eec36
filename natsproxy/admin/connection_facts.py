"""The facts of one connection, open or ended, as the APIs show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from natsproxy import close_reasons
from natsproxy.addresses import split_host_port
from natsproxy.events import Closed
from natsproxy.net.relay import Relay
from natsproxy.protocol import errors
from natsproxy.protocol.errors import ErrorKind, classify
from natsproxy.session.values import FROM_CLIENT, TO_CLIENT

REASONS: Final = {
    close_reasons.CLIENT_CLOSED: "Client Closed",
    close_reasons.CLIENT_LOST: "Read Error",
    close_reasons.CLIENT_PROTOCOL: "Parse Error",
    close_reasons.MID_FRAME: "Parse Error",
    close_reasons.UNAUTHORIZED: "Authentication Failure",
    close_reasons.STALLED: "Authentication Timeout",
    close_reasons.LIMIT: "Maximum Connections Exceeded",
    close_reasons.IDLE: "Stale Connection",
    close_reasons.SLOW: "Slow Consumer (Write Deadline)",
    close_reasons.DRAINED: "Server Shutdown",
    close_reasons.KILLED: "Kicked",
}
"""Causes of an end in nats-server's words, where it has some."""
_SAID: Final[dict[ErrorKind, str]] = {
    errors.AUTHORIZATION: "Authentication Failure",
    errors.AUTH_TIMEOUT: "Authentication Timeout",
    errors.USER_EXPIRED: "Authentication Expired",
    errors.ACCOUNT_EXPIRED: "Authentication Expired",
    errors.USER_REVOKED: "Credentials Revoked",
    errors.MAX_CONNECTIONS: "Maximum Connections Exceeded",
    errors.MAX_ACCOUNT_CONNECTIONS: "Maximum Account Connections Exceeded",
    errors.MAX_PAYLOAD: "Maximum Message Payload Exceeded",
    errors.MAX_CONTROL_LINE: "Maximum Control Line Exceeded",
    errors.MAX_SUBSCRIPTIONS: "Maximum Subscriptions Exceeded",
    errors.UNKNOWN_OP: "Parse Error",
    errors.STALE: "Stale Connection",
}


def reason_of(cause: str, said: str) -> str:
    """Return why a connection ended, in nats-server's words.  said: the -ERR with which the server closed."""
    if said and (reason := _SAID.get(classify(said).kind)) is not None:
        return reason
    return REASONS.get(cause) or cause.replace("-", " ").title()


class ConnectionFacts(NamedTuple):
    """The facts of a connection; times on the wall clock, in ns.

    kind: "nats" or "websocket".  in_*, out_*: from the client and to it.  tls: the version and the cipher
    suite, empty without.  stop, cause, reason: of its end, 0 and empty before it.
    """

    conn: int
    key: str
    kind: str
    ip: str
    port: int
    start: int
    last_activity: int
    rtt: int
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    subscriptions: int
    name: str
    lang: str
    version: str
    tls: tuple[str, str]
    user: str
    user_by: str
    account: str
    upstream: str
    stop: int = 0
    cause: str = ""
    reason: str = ""


ORDERS: Final[dict[str, Callable[[ConnectionFacts], Any]]] = {
    "cid": lambda one: one.conn,
    "start": lambda one: one.start,
    "subs": lambda one: -one.subscriptions,
    "pending": lambda one: -one.pending_bytes,
    "msgs_to": lambda one: -one.out_msgs,
    "msgs_from": lambda one: -one.in_msgs,
    "bytes_to": lambda one: -one.out_bytes,
    "bytes_from": lambda one: -one.in_bytes,
    "last": lambda one: -one.last_activity,
    "idle": lambda one: one.last_activity,
    "uptime": lambda one: -one.start,
    "stop": lambda one: -one.stop,
    "reason": lambda one: one.reason,
    "rtt": lambda one: -one.rtt,
}
"""The orders, by their names in nats-server."""


def facts_of(relay: Relay, epoch: int, now: int) -> ConnectionFacts:
    """Return the facts of an open connection.

    epoch: the time on the wall clock at which the proxy's clock began (ns).  now: on the wall clock.
    """
    accepted, session = relay.accepted, relay.session
    kernel = accepted.plain.tcp_info() or relay.kernel
    start = accepted.opened + epoch
    relay.catch_up()
    traffic, connect, who = session.traffic(), session.connect, session.who
    ip, port = split_host_port(accepted.facts.peer)
    return ConnectionFacts(
        conn=relay.conn,
        key=session.key,
        kind="websocket" if accepted.listener.websocket else "nats",
        ip=ip,
        port=port,
        start=start,
        last_activity=now if kernel is None else max(start, now - kernel.idle),
        rtt=0 if kernel is None else kernel.rtt,
        pending_bytes=relay.client.backlog,
        in_msgs=traffic.messages(FROM_CLIENT),
        out_msgs=traffic.messages(TO_CLIENT),
        in_bytes=traffic.bytes(FROM_CLIENT),
        out_bytes=traffic.bytes(TO_CLIENT),
        subscriptions=len(session.subs),
        name=connect.name,
        lang=connect.lang,
        version=connect.version,
        tls=("", "") if accepted.facts.tls is None else accepted.facts.tls.agreed,
        user=who.user,
        user_by=who.user_by,
        account=who.account,
        upstream=str(relay.opened.get("upstream", "")),
    )


def facts_at_end(relay: Relay, closed: Closed, epoch: int) -> ConnectionFacts:
    """Return the facts of a connection that has just ended."""
    stop = closed.t + epoch
    reason = reason_of(closed.cause, closed.error)
    return facts_of(relay, epoch, stop)._replace(stop=stop, cause=closed.cause, reason=reason)
