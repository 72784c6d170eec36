"""/connz: the connections of clients, in nats-server's shape, orders and filters.

A connection's `cid` is its number in the log and in captures.  Answers are built and sent a slice at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from natsproxy.admin.connection_facts import ORDERS, ConnectionFacts, facts_of
from natsproxy.admin.monitor.go_values import (
    BadParameter,
    boolean,
    duration,
    integer,
    timestamp,
    unsigned,
    uptime,
)
from natsproxy.admin.monitor.server import MonitoredServer
from natsproxy.admin.slices import joined, sliced
from natsproxy.rules.interface import Subscription
from natsproxy.session.session import Session

DEFAULT_LIMIT: Final = 1024
_OPEN, _CLOSED, _ALL = "open", "closed", "all"
_STATES: Final = {"": _OPEN, "open": _OPEN, "closed": _CLOSED, "any": _ALL, "all": _ALL}


@dataclass(frozen=True, slots=True)
class ConnzQuery:
    """The parameters of a request.  subs: "" for none, "list" or "detail"."""

    sort: str = "cid"
    auth: bool = False
    subs: str = ""
    offset: int = 0
    limit: int = DEFAULT_LIMIT
    cid: int = 0
    state: str = _OPEN
    user: str = ""
    account: str = ""
    mqtt: str = ""


def asked(query: Mapping[str, str]) -> ConnzQuery:
    """Read the parameters, in the server's order.  Raises BadParameter."""
    auth = boolean(query.get("auth", ""), "auth")
    subs = query.get("subs", "")
    if subs.lower() != "detail":
        subs = "list" if boolean(subs, "subs") else ""
    offset, limit = (integer(query.get(name, ""), name) for name in ("offset", "limit"))
    cid = unsigned(query.get("cid", ""), "cid")
    state = _STATES.get(query.get("state", "").lower())
    if state is None:
        raise BadParameter(f"Error decoding state for {query['state']}")
    sort = query.get("sort") or "cid"
    if sort not in ORDERS:
        raise BadParameter(f"invalid sorting option: {sort}")
    if sort in ("stop", "reason") and state != _CLOSED:
        raise BadParameter(f"sort by {sort} only valid on closed connections")
    return ConnzQuery(
        sort,
        auth,
        subs.lower(),
        max(0, offset),
        1 if cid else limit if limit > 0 else DEFAULT_LIMIT,
        cid,
        state,
        query.get("user", ""),
        query.get("acc", ""),
        query.get("mqtt_client", ""),
    )


async def connz(server: MonitoredServer, wanted: ConnzQuery) -> AsyncGenerator[str, None]:
    """Yield the answer in pieces."""
    now = time.time_ns()
    found = await _facts(server, wanted.state, now)
    if wanted.account:
        found = [one for one in found if one[0].account == wanted.account]
        if not found and not any(one.account == wanted.account for one, _ in await _facts(server, _ALL, now)):
            # No known account of that name: the server's answer then has no values.
            yield _head(server, "", 0, 0, wanted, now).replace("[", "null}")
            return
    total = len(found)
    chosen = [one for one in found if _matches(wanted, one[0])]
    chosen.sort(key=lambda one: ORDERS[wanted.sort](one[0]))
    page = chosen[wanted.offset : wanted.offset + wanted.limit]
    head = _head(server, server.id, len(page), total, wanted, now)
    async with aclosing(joined(chain((head,), _rows(wanted, page, now), ("]}",)))) as pieces:
        async for piece in pieces:
            yield piece


Found = tuple[ConnectionFacts, Session | None]
"""A connection, with its session while it is open."""


async def _facts(server: MonitoredServer, state: str, now: int) -> list[Found]:
    statistics, found = server.statistics, list[Found]()
    if state != _OPEN:
        found += [(one, None) for one in statistics.closed]
    if state != _CLOSED:
        epoch = statistics.epoch()
        async with aclosing(sliced(list(server.proxy.relays.values()))) as relays:
            found += [
                (facts_of(relay, epoch, now), relay.session) async for relay in relays if relay.end is None
            ]
    return found


def _matches(wanted: ConnzQuery, facts: ConnectionFacts) -> bool:
    if wanted.mqtt or (wanted.cid and facts.conn != wanted.cid):
        return False
    return not wanted.user or facts.user == wanted.user


def _head(server: MonitoredServer, name: str, number: int, total: int, wanted: ConnzQuery, now: int) -> str:
    head = {
        "server_id": name,
        "now": timestamp(now),
        "num_connections": number,
        "total": total,
        "offset": wanted.offset,
        "limit": wanted.limit,
        "connections": [],
    }
    return json.dumps(head)[:-2]


def _rows(wanted: ConnzQuery, page: Iterable[Found], now: int) -> Iterator[str]:
    """Yield the connections in JSON, in small parts: one may have very many subscriptions."""
    for at, (facts, session) in enumerate(page):
        yield ("," if at else "") + json.dumps(_to_json(wanted, facts, now))[:-1]
        if wanted.subs and session is not None and session.subs:
            detail = wanted.subs == "detail"
            yield ', "subscriptions_list_detail": [' if detail else ', "subscriptions_list": ['
            for number, sub in enumerate(list(session.subs.values())):
                one = described(sub, session, facts.conn) if detail else sub.subject.decode(errors="replace")
                yield (", " if number else "") + json.dumps(one)
            yield "]"
        yield "}"


def _to_json(wanted: ConnzQuery, facts: ConnectionFacts, now: int) -> dict[str, Any]:
    end = facts.stop or now
    shown = {
        "cid": facts.conn,
        "kind": "Client",
        "type": facts.kind,
        "ip": facts.ip,
        "port": facts.port,
        "start": timestamp(facts.start),
        "last_activity": timestamp(facts.last_activity),
        "stop": timestamp(facts.stop) if facts.stop else None,
        "reason": facts.reason,
        "rtt": duration(facts.rtt) if facts.rtt else None,
        "uptime": uptime(end - facts.start),
        "idle": uptime(end - facts.last_activity),
        "pending_bytes": facts.pending_bytes,
        "in_msgs": facts.in_msgs,
        "out_msgs": facts.out_msgs,
        "in_bytes": facts.in_bytes,
        "out_bytes": facts.out_bytes,
        "subscriptions": facts.subscriptions,
        "name": facts.name,
        "lang": facts.lang,
        "version": facts.version,
        "tls_version": facts.tls[0],
        "tls_cipher_suite": facts.tls[1],
        "authorized_user": facts.user if wanted.auth else "",
        "account": facts.account if wanted.auth else "",
    }
    shown["natsproxy"] = {"key": facts.key, "upstream": facts.upstream, "cause": facts.cause}
    # The server leaves out what is empty; numbers of 0 stay.
    return {key: value for key, value in shown.items() if value not in ("", None)}


def described(sub: Subscription, session: Session, conn: int) -> dict[str, Any]:
    """Return a subscription as the server shows it in detail."""
    shown: dict[str, Any] = {"subject": sub.subject.decode(errors="replace")}
    if sub.queue:
        shown["qgroup"] = sub.queue.decode(errors="replace")
    shown |= {
        "sid": sub.sid.decode(errors="replace"),
        "msgs": session.subscriptions.delivered(sub),
    }
    if sub.max:
        shown["max"] = sub.max
    return shown | {"cid": conn}
