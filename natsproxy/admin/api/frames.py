"""Endpoint for live frames: a stream of samples with exact totals."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from natsproxy.admin.api.events import HEADERS, MEDIA, event
from natsproxy.admin.api.operation import ApiError, ApiRequest, Operation, Param
from natsproxy.admin.api.schema import any_object, fields, flag, items, shape, text, whole
from natsproxy.admin.live_frames import MOST, PAYLOAD, VIEWERS
from natsproxy.admin.slices import sliced
from natsproxy.admin.streamed import Streamed
from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.format.records import CloseRecord, OpenRecord
from natsproxy.capture.listing.choice import Choice
from natsproxy.capture.listing.exchanges import Exchanges
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.listing.row import HEADER_BYTES, row
from natsproxy.capture.read.frames import Query
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.model.roles import ROLES
from natsproxy.wire.ops import ALL_OPS, Direction, Op, op_mask

_OPS: Final = {op.label: op for op in Op}
_HELD: Final = 4 << 20
"""The most bytes of frames held for others of their exchange, per viewer."""
_REQUEST: Final = fields({"subject": text("Its subject."), "after_ns": whole("Time since the request.")})
SHAPES: Final = {
    "Frame": fields(
        {
            "recorder": text("The id of the recorder, in captures; empty here."),
            "time": text("Time of receipt; of sending, for a frame that the proxy made."),
            "t_ns": whole("The same, as Unix time."),
            "run": whole("The run of the recorder, in captures; 1 here."),
            "conn": whole("The number of the connection."),
            "direction": text("Direction of the frame.", enum=[direction.label for direction in Direction]),
            "in": whole("Ordinal as received; null for a frame that the proxy made.", null=True),
            "out": whole("Ordinal as sent; null for a frame that a rule dropped.", null=True),
            "delay_ns": whole("Delay between receipt and sending."),
            "cause": text("The rule or the part of the proxy that acted; null for none.", null=True),
            "flags": whole("Flags as in captures: why the frame is incomplete."),
        },
        {
            "client": text("The client's name."),
            "exchange": whole("The number of its exchange, where exchanges were asked for."),
            "routine": flag("Whether it is routine traffic that a reader can skip."),
            "of": whole("The number of the frame that it stands for, where a rule put it in its place."),
            "op": text("Its operation.", enum=list(_OPS)),
            "subject": text("Its subject."),
            "reply": text("Its reply subject."),
            "sid": text("Its subscription."),
            "queue": text("Its queue group."),
            "args": text("The arguments of INFO, CONNECT, -ERR and UNSUB, without secrets."),
            "headers": any_object("Values by names; a list where a name is there several times."),
            "headers_cut": flag("Whether headers are truncated."),
            "headers_raw": text("Headers that break the grammar, as they are."),
            "size": whole("The bytes of its payload, headers included."),
            "payload": text("Its payload, where it is UTF-8."),
            "payload_hex": text("Its payload, where it is not."),
            "payload_cut": flag("Whether the payload is truncated."),
            "subscription": any_object("That of a delivery: subject and queue."),
            "request": {**_REQUEST, "description": "The request that it answers."},
            "meaning": any_object("Its meaning: kind, text, and more by kind; bad where something failed."),
        },
    ),
    "LiveFrames": fields(
        {
            "frames": items(shape("Frame")),
            "total": whole(
                "All frames since the last event, exactly; where each viewer names subjects: theirs."
            ),
            "bytes": whole("Their bytes."),
            "seen": whole("How many of them were looked at: these are one in total/seen."),
            "changes": items(
                fields(
                    {
                        "conn": whole("The number of the connection."),
                        "client": text("The client's name."),
                        "change": text("Whether it was opened or closed.", enum=["opened", "closed"]),
                        "t_ns": whole("Unix time of the change."),
                        "cause": text("Why it ended."),
                        "detail": text("Details of the cause."),
                        "address": text("Client address of a connection that was opened."),
                        "server": text("Server address of a connection that was opened."),
                    }
                )
            ),
        }
    ),
}
_FILTERS: Final = (
    Param("subject", text("Only these subject patterns, wildcards allowed.", most=256), many=True),
    Param("op", text("Only these operations: PUB,HPUB.", most=100)),
    Param("direction", text("Only this direction.", enum=["c2s", "s2c"])),
    Param("conn", whole("Only these connections.", most=1 << 53), many=True),
    Param("client", text("Only clients whose name matches one of these (* and ?).", most=256), many=True),
    Param("role", text("Only frames in these roles, as in rules: ack,nak.", most=256)),
    Param(
        "header", text("Only with all these headers: NAME, or NAME: VALUE (* and ?).", most=256), many=True
    ),
    Param("exchange", flag("And the frames of their exchanges."), False),
    Param("payload", whole("Maximum number of payload bytes sent per frame.", most=PAYLOAD), 256),
    Param("limit", whole("Maximum number of frames per event.", least=1, most=MOST), 100),
)


def _choice(query: Mapping[str, Any]) -> Choice:
    """Return the frames that a viewer wants.  Raises ApiError."""
    direction, subjects = query["direction"], tuple(subject.encode() for subject in query["subject"])
    for subject in subjects:
        if not is_valid_subscribe(subject):
            raise ApiError(400, f"subject must be a valid subject pattern, not {subject.decode()!r}")
    ops = _words("op", query["op"] and query["op"].upper(), _OPS)
    return Choice(
        Query(
            conns=ConnectionChoice.of(*query["conn"]),
            direction=None if direction is None else next(d for d in Direction if d.label == direction),
            ops=op_mask(*(_OPS[word] for word in ops)) or ALL_OPS,
            subjects=subjects,
        ),
        roles=tuple(ROLES[word] for word in _words("role", query["role"], ROLES)),
        clients=query["client"],
        headers=tuple(map(_header, query["header"])),
        exchange=query["exchange"],
        header_bytes=HEADER_BYTES,
    )


def _words(name: str, given: str | None, known: Iterable[str]) -> list[str]:
    words = given.split(",") if given else []
    for word in words:
        if word not in known:
            raise ApiError(400, f"{name} must be of {', '.join(known)}, not {word!r}")
    return words


def _header(given: str) -> tuple[bytes, str | None]:
    name, colon, glob = given.partition(":")
    return name.strip().encode(), glob.strip() if colon else None


def _change(event: Event) -> dict[str, Any]:
    item = event.item
    assert isinstance(item, OpenRecord | CloseRecord)
    closed, info = isinstance(item, CloseRecord), item.info
    return {
        "conn": item.conn,
        "client": event.client,
        "change": "closed" if closed else "opened",
        "t_ns": event.wall,
        "cause": item.cause if isinstance(item, CloseRecord) else "",
        "detail": str(info.get("detail") or ""),
        "address": "" if closed else str(info.get("client")),
        "server": "" if closed else str(info.get("upstream")),
    }


async def _stream(call: ApiRequest) -> Streamed:
    choice, limit, most = _choice(call.query), call.query["limit"], call.query["payload"]
    live, exchanges = call.proxy.live_frames, Exchanges(_HELD) if choice.exchange else None
    if live.full:
        raise ApiError(429, f"there are {VIEWERS} viewers already: one of them has to go")

    def chosen(seen: list[Listed]) -> Iterator[Listed | None]:
        """Yield the selected frames, and None after each frame that was examined."""
        for one in seen:
            if exchanges is not None:
                yield from exchanges.add(one, choice.wants(one))
            elif choice.wants(one):
                yield one
            yield None

    async def pieces() -> AsyncGenerator[str | bytes, None]:
        async with live.view(() if choice.around else choice.query.subjects) as viewer:
            yield ": natsproxy\n\n"
            while True:
                sample, total, size = await live.next(viewer)
                async with aclosing(sliced(chosen(sample.seen))) as looked_at:
                    found = [one async for one in looked_at if one is not None]
                async with aclosing(sliced(found[:limit])) as each:
                    shown = [row(one, most) async for one in each]
                # Of those that were looked at and are wanted, only `limit` are shown.
                seen = len(sample.seen) * len(shown) // len(found) if found else len(sample.seen)
                changes = [_change(one) for one in sample.changes[:limit]]
                data = {"frames": shown, "total": total, "bytes": size, "seen": seen, "changes": changes}
                yield event("frames", data)

    return Streamed(pieces(), MEDIA, HEADERS)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/proxies/{proxy}/frames/stream",
        "streamFrames",
        'Frames as they go, as server-sent events "frames" with the shape LiveFrames, five a second.  They '
        "are a sample of busy traffic; totals are exact.  While a capture is made, its selection holds.",
        _stream,
        MEDIA,
        params=_FILTERS,
        more=(429,),
    ),
)
