"""Endpoint for traffic: the counters of a proxy at one moment, and of the top connections by some order."""

from __future__ import annotations

from contextlib import aclosing
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from natsproxy.admin.api.operation import ApiRequest, Operation, Param
from natsproxy.admin.api.schema import fields, items, shape, text, whole
from natsproxy.admin.connection_facts import ORDERS, ConnectionFacts, facts_of
from natsproxy.admin.slices import sliced
from natsproxy.net.clock import now_ns
from natsproxy.net.relay import Relay
from natsproxy.session.values import FROM_CLIENT, TO_CLIENT

SORTS: Final = tuple(name for name in ORDERS if name not in ("stop", "reason"))
_MOST: Final = 1000  # connections in one answer
_SUBJECTS: Final = 100  # of one connection
_COUNTS: Final = {
    "in_msgs": whole("Messages from clients."),
    "out_msgs": whole("Messages to clients."),
    "in_bytes": whole("Bytes from clients, protocol lines included."),
    "out_bytes": whole("Bytes to clients, protocol lines included."),
    "subscriptions": whole("Subscriptions that are open."),
}
SHAPES: Final = {
    "TrafficOfConnection": fields(
        {
            "conn": whole("The connection's number, in events and captures.", least=1),
            "client": text("The client's address."),
            "name": text("As the client's CONNECT says."),
            "user": text("As the client's CONNECT says: its user, its public nkey, or the user of its JWT."),
            "user_by": text(
                "Whose word it is: natsproxy, certificate, server (it accepted the login) or client."
            ),
            "account": text("As the server says."),
            "lang": text("As the client's CONNECT says."),
            "version": text("As the client's CONNECT says."),
            "upstream": text("The server's address."),
            "since_ns": whole("When it came, as Unix time."),
            "last_ns": whole("When it was last used, as Unix time."),
            "rtt_ns": whole("The round-trip time of its TCP connection; 0 where it is not known."),
            "waiting": whole("Bytes that the client has not taken yet."),
            **_COUNTS,
        },
        {"subjects": items(text("A subject that it has subscribed to."))},
    ),
    "Traffic": fields(
        {
            "time_ns": whole("The time of the answer, as Unix time."),
            "clock_ns": whole("The same on a clock that never goes back: for rates."),
            "started_ns": whole("The time when the counts began, as Unix time."),
            **_COUNTS,
            "firings": whole("Firings of rules."),
            "gap_frames": whole("Frames that captures have missed."),
            "total": whole("How many connections are open."),
            "connections": items(shape("TrafficOfConnection")),
        }
    ),
}


def _to_json(facts: ConnectionFacts, relay: Relay, subjects: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "conn": facts.conn,
        "client": relay.opened["client"],
        "name": facts.name,
        "user": facts.user,
        "user_by": facts.user_by,
        "account": facts.account,
        "lang": facts.lang,
        "version": facts.version,
        "upstream": facts.upstream,
        "since_ns": facts.start,
        "last_ns": facts.last_activity,
        "rtt_ns": facts.rtt,
        "waiting": facts.pending_bytes,
        "in_msgs": facts.in_msgs,
        "out_msgs": facts.out_msgs,
        "in_bytes": facts.in_bytes,
        "out_bytes": facts.out_bytes,
        "subscriptions": facts.subscriptions,
    }
    if subjects:
        subs = islice(relay.session.subs.values(), subjects)
        shown["subjects"] = [sub.subject.decode("utf-8", "replace") for sub in subs]
    return shown


async def _get(call: ApiRequest) -> dict[str, Any]:
    statistics, order = call.proxy.statistics, ORDERS[call.query["sort"]]
    traffic, subscriptions = await statistics.traffic()
    epoch, at = statistics.epoch(), now_ns()
    found: list[tuple[ConnectionFacts, Relay]] = []
    async with aclosing(sliced(list(call.proxy.proxy.relays.values()))) as relays:
        async for relay in relays:
            if relay.end is None:
                found.append((facts_of(relay, epoch, at + epoch), relay))
    first = nsmallest(call.query["limit"], found, key=lambda one: order(one[0]))
    return {
        "time_ns": at + epoch,
        "clock_ns": at,
        "started_ns": statistics.started,
        "in_msgs": traffic.messages(FROM_CLIENT),
        "out_msgs": traffic.messages(TO_CLIENT),
        "in_bytes": traffic.bytes(FROM_CLIENT),
        "out_bytes": traffic.bytes(TO_CLIENT),
        "subscriptions": subscriptions,
        "firings": statistics.firings.total(),
        "gap_frames": statistics.gap_frames,
        "total": len(found),
        "connections": [_to_json(*one, call.query["subjects"]) for one in first],
    }


OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/proxies/{proxy}/traffic",
        "getTraffic",
        "The counters of the traffic at one moment, of all connections so far and of the first of the open "
        "ones in an order.  Two answers give rates.",
        _get,
        shape("Traffic"),
        params=(
            Param("sort", text("The order, as nats-server's.", enum=list(SORTS)), "cid"),
            Param("limit", whole("The most connections that are listed.", least=0, most=_MOST), 100),
            Param("subjects", whole("The most subjects of each connection.", least=0, most=_SUBJECTS), 0),
        ),
    ),
)
