"""/subsz: the subscriptions of clients, in nats-server's shape.

They are the proxy's own count: those of the server itself, and of its other clients, are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from natsproxy.admin.monitor.connz import DEFAULT_LIMIT, described
from natsproxy.admin.monitor.go_values import BadParameter, boolean, integer
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.turn import sliced
from natsproxy.net.relay import Relay
from natsproxy.protocol.subjects import has_wildcard, is_valid_strict, matches
from natsproxy.rules.interface import Subscription

_AT_ONCE: Final = 200  # subscriptions of one slice of time


async def subsz(server: MonitoredServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer.  Raises BadParameter."""
    listed = boolean(query.get("subs", ""), "subs")
    offset, limit = (max(0, integer(query.get(name, ""), name)) for name in ("offset", "limit"))
    limit = limit or DEFAULT_LIMIT
    account, tested = query.get("acc", ""), query.get("test", "")
    subject = tested.encode(errors="replace")
    if tested and (not is_valid_strict(subject) or has_wildcard(subject)):
        raise BadParameter(f"invalid test subject, must be valid publish subject: {tested}")
    number, total, page = 0, 0, list[dict[str, Any]]()
    async with aclosing(sliced(_all(server, account, listed=listed))) as found:
        async for relay, theirs, subs, counted in found:
            number += counted
            for sub in subs:
                if tested and not matches(sub.subject, subject):
                    continue
                total += 1
                if offset < total <= offset + limit:
                    shown = described(sub, relay.session, relay.conn)
                    page.append({"account": theirs, "account_tag": theirs, **shown} if theirs else shown)
    answer: dict[str, Any] = {
        "server_id": server.id,
        "now": server.now(),
        "num_subscriptions": number,
        "num_cache": 0,
        "num_inserts": number,
        "num_removes": 0,
        "num_matches": 0,
        "cache_hit_rate": 0,
        "max_fanout": 0,
        "avg_fanout": 0,
        "total": total,
        "offset": offset,
        "limit": limit,
    }
    return answer | ({"subscriptions_list": page} if page else {})


def _all(
    server: MonitoredServer, account: str, *, listed: bool
) -> Iterator[tuple[Relay, str, list[Subscription], int]]:
    """Yield connections of an account ("" for all) with their subscriptions, some of them, and their number.

    A connection may have very many: each part is for one slice of time.
    """
    for relay in list(server.proxy.relays.values()):
        theirs = relay.session.client()["account"]
        if account and theirs != account:
            continue
        subs = list(relay.session.subs.values()) if listed else []
        yield relay, theirs, subs[:_AT_ONCE], len(relay.session.subs)
        for first in range(_AT_ONCE, len(subs), _AT_ONCE):
            yield relay, theirs, subs[first : first + _AT_ONCE], 0
