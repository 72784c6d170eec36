"""Endpoints for firings of rules: the latest ones, and a stream of new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from natsproxy.admin.api import times
from natsproxy.admin.api.connections import WHO
from natsproxy.admin.api.events import MEDIA, MOST, event, stream
from natsproxy.admin.api.operation import ApiRequest, Operation, Param
from natsproxy.admin.api.schema import fields, items, shape, text, whole
from natsproxy.admin.firing_log import KEPT, Fired
from natsproxy.admin.streamed import Streamed

_PATH: Final = "/v1/proxies/{proxy}/firings"
SHAPES: Final = {
    "Firing": fields(
        {
            "number": whole("Sequence number of the event.", least=1),
            "time": text("Time of the firing."),
            "time_ns": whole("The same, as Unix time."),
            "conn": whole("The number of the connection."),
            "key": text("The connection's key."),
            "rule": text("The rule's name."),
            "kind": text("The rule's kind."),
            "direction": text("Direction of the frame.", enum=["c2s", "s2c"]),
            "action": text("Action taken."),
            "op": text("The frame's op; empty for an action on the link."),
            "role": text("The JetStream role that the rule selects; empty for none."),
            "subject": text("The frame's subject."),
            "ordinal": whole("Ordinal of the frame as received; null for an action on the link.", null=True),
            "m": whole("Number of the match."),
            "count": whole("Number of frames that the event covers."),
            "delay_ns": whole("Delay added, in nanoseconds."),
            "detail": text("Further details."),
            **{name: text(words) for name, words in WHO.items()},
        }
    ),
    "Firings": fields(
        {"total": whole("Events so far."), "firings": items(shape("Firing"))},
    ),
}
_RULE: Final = Param("rule", text("Only those of this rule."))
_CONN: Final = Param("conn", whole("Only those on this connection.", most=1 << 53))


def _to_json(fired: Fired) -> dict[str, Any]:
    one = fired.firing
    return {
        "number": fired.number,
        "time": times.iso(one.t),
        "time_ns": times.wall(one.t),
        "conn": one.conn,
        "key": one.key,
        "rule": one.rule,
        "kind": one.kind,
        "direction": one.direction,
        "action": one.action,
        "op": one.op,
        "role": one.role,
        "subject": one.subject,
        "ordinal": one.ordinal,
        "m": one.m,
        "count": one.count,
        "delay_ns": one.delay,
        "detail": one.detail,
        **one.who._asdict(),
    }


def _filter(call: ApiRequest) -> Callable[[Fired], bool]:
    rule, conn = call.query["rule"], call.query["conn"]
    return lambda one: (rule is None or one.firing.rule == rule) and (conn is None or one.firing.conn == conn)


async def _list(call: ApiRequest) -> dict[str, Any]:
    log, wanted = call.proxy.firings, _filter(call)
    found = [one for one in log.after(0) if wanted(one)][-call.query["limit"] :]
    return {"total": log.total, "firings": [_to_json(one) for one in found]}


async def _stream(call: ApiRequest) -> Streamed:
    log, wanted = call.proxy.firings, _filter(call)
    seen = call.headers.get("last-event-id", "")
    # A number greater than ours is from another process.
    at = min(int(seen), log.total) if seen.isascii() and seen.isdigit() and len(seen) < 18 else log.total

    async def batch() -> list[str]:
        nonlocal at
        news = log.after(at)
        lost = log.total - at - len(news)
        at = log.total
        found = [one for one in news if wanted(one)]
        lost += max(0, len(found) - MOST)
        events = [event("lost", {"events": lost})] if lost else []
        return events + [event("firing", _to_json(one), one.number) for one in found[-MOST:]]

    return stream(batch, log.wait)


OPERATIONS: Final = (
    Operation(
        "GET",
        _PATH,
        "listFirings",
        f"The latest firings of rules, oldest first; {KEPT} are kept from when somebody first asks.",
        _list,
        shape("Firings"),
        params=(Param("limit", whole("Maximum number of results.", least=1, most=MOST), 100), _RULE, _CONN),
    ),
    Operation(
        "GET",
        _PATH + "/stream",
        "streamFirings",
        'Firings as they happen, as server-sent events: "firing" with the shape Firing, "lost" with the '
        "number of events that were too many to send.  Last-Event-ID resumes after an event.",
        _stream,
        MEDIA,
        params=(_RULE, _CONN),
    ),
)
