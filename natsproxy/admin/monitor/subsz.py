"""/subsz: the subscriptions of clients, in nats-server's shape.

Only subscriptions through the proxy are counted, not those of the server itself or of its other clients.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Final

from natsproxy.admin.monitor.connz import DEFAULT_LIMIT, described
from natsproxy.admin.monitor.go_values import BadParameter, Query, boolean, integer, written
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.slices import joined, sliced
from natsproxy.net.relay import Relay
from natsproxy.protocol.subjects import is_valid_publish, matches
from natsproxy.rules.interface import Subscription

_AT_ONCE: Final = 50  # subscriptions per slice of time


@dataclass(frozen=True, slots=True)
class SubszQuery:
    """The parameters of a request.  listed: include subscriptions.  test: only those that match it."""

    listed: bool
    offset: int
    limit: int
    account: str
    test: bytes


def asked(query: Query) -> SubszQuery:
    """Read the parameters, in the server's order.  Raises BadParameter."""
    listed = boolean(query.get("subs", ""), "subs")
    offset, limit = (max(0, integer(query.get(name, ""), name)) for name in ("offset", "limit"))
    tested = query.get("test", "")
    subject = written(tested)
    if tested and not is_valid_publish(subject):
        raise BadParameter(f"invalid test subject, must be valid publish subject: {tested}")
    return SubszQuery(listed, offset, limit or DEFAULT_LIMIT, query.get("acc", ""), subject)


async def subsz(server: MonitoredServer, wanted: SubszQuery) -> AsyncGenerator[str, None]:
    """Yield the answer in pieces.  The list follows its counts, so it is made first."""
    number, total, page = 0, 0, list[str]()
    async with aclosing(sliced(_all(server, wanted.account, listed=wanted.listed))) as found:
        async for relay, theirs, subs, counted in found:
            number += counted
            for sub in subs:
                if wanted.test and not matches(sub.subject, wanted.test):
                    continue
                total += 1
                if wanted.offset < total <= wanted.offset + wanted.limit:
                    shown = described(sub, relay.session, relay.conn)
                    named = {"account": theirs, "account_tag": theirs} if theirs else {}
                    page.append((", " if page else "") + json.dumps(named | shown))
    head = {
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
        "offset": wanted.offset,
        "limit": wanted.limit,
    }
    listed = chain((', "subscriptions_list": [',), page, ("]",)) if page else ()
    async with aclosing(joined(chain((json.dumps(head)[:-1],), listed, ("}",)))) as pieces:
        async for piece in pieces:
            yield piece


def _all(
    server: MonitoredServer, account: str, *, listed: bool
) -> Iterator[tuple[Relay, str, list[Subscription], int]]:
    """Yield connections of an account ("" for all) with their subscriptions, some of them, and their number.

    A connection may have very many: each part is for one slice of time.
    """
    for relay in list(server.proxy.relays.values()):
        theirs = relay.session.who.account
        if account and theirs != account:
            continue
        subs = list(relay.session.subs.values()) if listed else []
        yield relay, theirs, subs[:_AT_ONCE], len(relay.session.subs)
        for first in range(_AT_ONCE, len(subs), _AT_ONCE):
            yield relay, theirs, subs[first : first + _AT_ONCE], 0
