"""Endpoints for connections: list them, show, suspend, pause or close one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import aclosing
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from math import isfinite
from typing import Any, Final

from natsproxy import close_reasons
from natsproxy.admin.api import times
from natsproxy.admin.api.operation import ApiError, ApiRequest, Operation, Param, Reply
from natsproxy.admin.api.schema import any_object, fields, flag, items, shape, text, whole
from natsproxy.admin.slices import sliced
from natsproxy.net.clock import now_ns
from natsproxy.net.relay import Relay
from natsproxy.session.session import Session
from natsproxy.wire.ops import C2S, S2C

_PATH: Final = "/v1/proxies/{proxy}/connections"
_MOST: Final = 1000  # connections or subscriptions in one answer
WHO: Final = {
    "client": "The client's address.",
    "name": "As the client's CONNECT says.",
    "user": "As the client's CONNECT says: its user, its public nkey, or the user of its JWT.",
    "user_by": "Whose word it is: natsproxy, certificate, server (it accepted the login) or client.",
    "account": "As the server says, else the client's JWT.",
    "tls_subject": "Of the client's certificate.",
}
"""The fields of `Who`, as the API tells them."""
_TEXTS: Final = {
    **WHO,
    "upstream": "The server's address.",
    "lang": "As the client's CONNECT says.",
    "version": "As the client's CONNECT says.",
    "key": "The name by which rules and captures know the connection.",
    "phase": "How far the login has come: ready, or before.",
}
_COUNTS: Final = fields(
    {
        "c2s_bytes": whole("Bytes received from the client."),
        "c2s_frames": whole("Frames received from the client."),
        "c2s_frames_out": whole("Frames sent to the server."),
        "s2c_bytes": whole("Bytes received from the server."),
        "s2c_frames": whole("Frames received from the server."),
        "s2c_frames_out": whole("Frames sent to the client."),
        "to_client_waiting": whole("Bytes waiting to be sent to the client."),
        "to_server_waiting": whole("Bytes waiting to be sent to the server."),
    }
)
_FACTS: Final = {
    "conn": whole("The connection's number, in events and captures.", least=1),
    **{name: text(words) for name, words in _TEXTS.items()},
    "since": text("Time at which it was accepted."),
    "since_ns": whole("The same, as Unix time."),
    "suspended": flag("Whether its messages are dropped."),
    "paused": flag("Whether reading from it is paused."),
    "subscriptions": whole("Number of subscriptions."),
    "counts": _COUNTS,
}
_SUBSCRIPTION: Final = fields(
    {
        "sid": text("Subscription id (sid) chosen by the client."),
        "subject": text("Its subject, as the client wrote it."),
        "queue": text("Its queue group."),
        "max": whole("Maximum number of deliveries, 0 for no limit."),
        "delivered": whole("Deliveries counted so far."),
    }
)
SHAPES: Final = {
    "Connection": fields(_FACTS),
    "Connections": fields(
        {
            "total": whole("Number of connections that match the filters."),
            "offset": whole("Number of connections skipped."),
            "connections": items(shape("Connection")),
        }
    ),
    "ConnectionDetails": fields(
        {
            **_FACTS,
            "connect": {**any_object("The client's CONNECT without secrets."), "type": ["object", "null"]},
            "subs": items(_SUBSCRIPTION),
            "subs_offset": whole("Number of subscriptions skipped."),
        }
    ),
}

_LIMIT: Final = Param("limit", whole("Maximum number of results.", least=0, most=_MOST), 100)
_OFFSET: Final = Param("offset", whole("Number of results to skip.", most=1 << 53), 0)
_FILTERS: Final = tuple(
    Param(name, text(f"Only those whose {name} matches this pattern (* and ?).", most=256))
    for name in ("name", "user", "account", "client", "upstream", "lang")
)


def _facts(relay: Relay) -> dict[str, Any]:
    session, connect = relay.session, relay.session.connect
    counts, (c2s, s2c) = session.counts(), session.pipes
    return {
        "conn": relay.conn,
        "upstream": relay.opened["upstream"],
        **session.who._asdict(),
        "lang": connect.lang,
        "version": connect.version,
        **session.facts(now_ns()),
        "since": times.iso(relay.accepted.opened),
        "since_ns": times.wall(relay.accepted.opened),
        "subscriptions": len(session.subs),
        "counts": {
            **counts,
            "c2s_frames_out": c2s.out_next,
            "s2c_frames_out": s2c.out_next,
            "to_client_waiting": relay.client.backlog + session.pipes[S2C].outbox.bytes,
            "to_server_waiting": relay.server.backlog + session.pipes[C2S].outbox.bytes,
        },
    }


def _wanted(relay: Relay, filters: Mapping[str, str]) -> bool:
    if not filters:
        return True
    facts = {
        **relay.session.who._asdict(),
        "lang": relay.session.connect.lang,
        **relay.opened,
    }
    return all(fnmatchcase(str(facts[name]), pattern) for name, pattern in filters.items())


def _relay(call: ApiRequest) -> Relay:
    number = call.path["conn"]
    relay = call.proxy.proxy.relays.get(int(number)) if re.fullmatch("[0-9]{1,18}", number) else None
    if relay is None:
        raise ApiError(404, f"there is no connection {number[:20]!r}")
    relay.catch_up()
    return relay


async def _list(call: ApiRequest) -> dict[str, Any]:
    limit, offset = call.query["limit"], call.query["offset"]
    filters = {p.name: call.query[p.name] for p in _FILTERS if call.query[p.name] is not None}
    total, shown = 0, []
    async with aclosing(sliced(list(call.proxy.proxy.relays.values()))) as each:
        async for relay in each:
            if not _wanted(relay, filters):
                continue
            if offset <= total < offset + limit:
                relay.catch_up()
                shown.append(_facts(relay))
            total += 1
    return {"total": total, "offset": offset, "connections": shown}


async def _get(call: ApiRequest) -> dict[str, Any]:
    relay = _relay(call)
    limit, offset = call.query["limit"], call.query["offset"]
    subs = islice(relay.session.subs.values(), offset, offset + limit)
    return {
        **_facts(relay),
        "connect": _connect(relay.session.redacted_connect),
        "subs": [
            {
                "sid": _text(sub.sid),
                "subject": _text(sub.subject),
                "queue": _text(sub.queue),
                "max": sub.max,
                "delivered": relay.session.subscriptions.delivered(sub),
            }
            for sub in subs
        ],
        "subs_offset": offset,
    }


def _connect(frame: bytes) -> Any:
    """Return the options of a redacted CONNECT; None where there is none, or it is withheld."""
    try:
        options = json.loads(frame.partition(b" ")[2], parse_float=_number)
    except (ValueError, RecursionError):
        return None
    return options if isinstance(options, dict) else None


def _number(written: str) -> float | str:
    """Return a number of JSON; as it is written where it is too large for an answer."""
    number = float(written)
    return number if isfinite(number) else written


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


async def _patch(call: ApiRequest) -> dict[str, Any]:
    relay, body = _relay(call), call.body
    if "suspended" in body:
        relay.control(partial(Session.suspend, on=body["suspended"]))
        call.tell("connection suspended" if body["suspended"] else "connection resumed", conn=relay.conn)
    if "paused" in body:
        paused = body["paused"]
        lasts = times.ns(paused, "paused") if isinstance(paused, str) else None if paused else 0
        relay.control(partial(Session.pause, lasts=lasts))
        call.tell("connection unpaused" if lasts == 0 else "connection paused", conn=relay.conn)
    return _facts(relay)


async def _close(call: ApiRequest) -> Reply:
    relay, query = _relay(call), call.query
    call.tell("connection closed", conn=relay.conn)
    detail = query["reason"] or "an operator closed it"
    if query["error"] is not None:
        error = query["error"]
        relay.control(partial(Session.expel, error=error, cause=close_reasons.KILLED, detail=detail))
    else:
        relay.kill(close_reasons.KILLED, detail, reset=query["reset"])
    return Reply(None, 204)


_PAUSED: Final = {
    "type": ["boolean", "string"],
    "maxLength": 32,
    "description": 'Read nothing from both sides: true until false is sent, or for a time: "10s".',
}
_ONE_LINE: Final = r"^[ -~]*$"
OPERATIONS: Final = (
    Operation(
        "GET",
        _PATH,
        "listConnections",
        "Open connections, oldest first.",
        _list,
        shape("Connections"),
        params=(_LIMIT, _OFFSET, *_FILTERS),
    ),
    Operation(
        "GET",
        _PATH + "/{conn}",
        "getConnection",
        "One connection with its CONNECT and its subscriptions.",
        _get,
        shape("ConnectionDetails"),
        params=(_LIMIT, _OFFSET),
        more=(404,),
    ),
    Operation(
        "PATCH",
        _PATH + "/{conn}",
        "changeConnection",
        "Lose the messages of a connection, or read nothing from it; it stays open.",
        _patch,
        shape("Connection"),
        body=fields({}, {"suspended": flag("Drop its messages in both directions."), "paused": _PAUSED}),
        more=(404,),
    ),
    Operation(
        "DELETE",
        _PATH + "/{conn}",
        "closeConnection",
        "Close a connection; its client comes back, unless the error tells it not to.",
        _close,
        None,
        params=(
            Param("error", text("Send this -ERR first.", most=200, pattern=_ONE_LINE)),
            Param("reset", flag("Close with RST."), False),
            Param("reason", text("Reason for closing it, shown in the log and in captures.", most=200)),
        ),
        status=204,
        more=(404,),
    ),
)
