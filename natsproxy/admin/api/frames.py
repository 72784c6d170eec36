"""Frames as they go by HTTP: a stream of samples, with totals that are exact."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from fnmatch import fnmatchcase
from typing import Any, Final

from natsproxy.admin.api import times
from natsproxy.admin.api.events import HEADERS, MEDIA, event
from natsproxy.admin.api.operation import ApiError, Ask, Operation, Param
from natsproxy.admin.api.schema import fields, flag, items, shape, text, whole
from natsproxy.admin.live_frames import MOST, SeenFrame
from natsproxy.admin.streamed import Streamed
from natsproxy.capture.format.records import Close, Flags, Open
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.headers import parse as parse_headers
from natsproxy.protocol.subjects import is_valid_subscribe, matches
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Direction, Op

_OPS: Final = tuple(op.label for op in Op)
SHAPES: Final = {
    "Frame": fields(
        {
            "time_ns": whole("When it came, as Unix time; when it went, for one of the proxy's own."),
            "conn": whole("The number of the connection."),
            "client": text("The client's name; empty where it is not known any more."),
            "direction": text("Its way.", enum=["c2s", "s2c"]),
            "op": text("Its operation.", enum=list(_OPS)),
            "subject": text("Its subject."),
            "reply": text("Its reply subject."),
            "sid": text("Its subscription."),
            "queue": text("Its queue group."),
            "args": text("The arguments of INFO, CONNECT, -ERR and UNSUB, without secrets."),
            "headers": items(items(text("Name, then value."), 2)),
            "status": text("The status in its headers."),
            "size": whole("The bytes of its payload, without headers."),
            "payload": text("The first bytes of its payload."),
            "encoding": text("Of payload.", enum=["utf-8", "base64"]),
            "whole": flag("All of the payload is here."),
            "ordinal": whole("Its number as it came; null for one of the proxy's own.", null=True),
            "passed": flag("It went on; else a rule kept it, or another frame went in its place."),
            "cause": text("The rule or the part of the proxy that acted; null for none.", null=True),
        }
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
                        "change": text("What it did.", enum=["opened", "closed"]),
                        "time_ns": whole("When, as Unix time."),
                        "cause": text("Why it ended."),
                    }
                )
            ),
        }
    ),
}
_FILTERS: Final = (
    Param("subject", text("Only this subject pattern, wildcards allowed.", most=256)),
    Param("op", text("Only these operations: PUB,HPUB.", most=100)),
    Param("direction", text("Only this direction.", enum=["c2s", "s2c"])),
    Param("conn", whole("Only this connection.", most=1 << 53)),
    Param("name", text("Only clients whose name is like this (* and ?).", most=256)),
    Param("payload", whole("The most bytes of a payload that are sent.", most=65536), 256),
    Param("limit", whole("The most frames in one event.", least=1, most=MOST), 100),
)


class _Filter:
    """The frames that a viewer wants."""

    def __init__(self, ask: Ask) -> None:
        query = ask.query
        self._proxy = ask.proxy.proxy
        self._conn, self._name = query["conn"], query["name"]
        self._direction = query["direction"]
        self.subjects = _subjects(query["subject"])
        self._ops = _ops(query["op"])
        self._names: dict[int, str] = {}

    def name(self, conn: int) -> str:
        """Return the name of a connection's client."""
        name = self._names.get(conn)
        if not name:  # nor while CONNECT is still to come
            name = self._names[conn] = _name(self._proxy, conn)
            if len(self._names) > 1000:
                self._names.clear()
        return name

    def wants(self, one: SeenFrame) -> bool:
        """Tell whether a frame is wanted."""
        record, frame = one.record, one.frame
        if self._conn is not None and record.conn != self._conn:
            return False
        if self._direction is not None and Direction(record.direction).label != self._direction:
            return False
        if self._ops and frame.op not in self._ops:
            return False
        if self.subjects and not (frame.subject and matches(self.subjects[0], frame.subject)):
            return False
        return self._name is None or fnmatchcase(self.name(record.conn), self._name)


def _subjects(given: str | None) -> tuple[bytes, ...]:
    if given is None:
        return ()
    pattern = given.encode()
    if not is_valid_subscribe(pattern):
        raise ApiError(400, f"subject must be a valid subject pattern, not {given!r}")
    return (pattern,)


def _ops(given: str | None) -> frozenset[Op]:
    if given is None:
        return frozenset()
    by_label = {op.label: op for op in Op}
    words = given.upper().split(",")
    for word in words:
        if word not in by_label:
            raise ApiError(400, f"op must be of {', '.join(_OPS)}, not {word!r}")
    return frozenset(by_label[word] for word in words)


def _name(proxy: Proxy, conn: int) -> str:
    relay = proxy.relays.get(conn)
    return relay.session.connect.name if relay is not None else ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _shown(one: SeenFrame, name: str, most: int, distance: int) -> dict[str, Any]:
    record, frame = one.record, one.frame
    headers = parse_headers(frame.headers) if frame.header_size else None
    size = max(0, frame.size - frame.header_size)
    payload, encoding = _payload(frame, most)
    cut = bool(record.flags & ~Flags.REDACTED)
    return {
        "time_ns": record.t + distance,
        "conn": record.conn,
        "client": name,
        "direction": Direction(record.direction).label,
        "op": frame.op.label,
        "subject": _text(frame.subject),
        "reply": _text(frame.reply),
        "sid": _text(frame.sid),
        "queue": _text(frame.queue),
        "args": _text(frame.args),
        "headers": [[_text(k), _text(v)] for k, v in headers.pairs] if headers is not None else [],
        "status": _text(headers.code) if headers is not None else "",
        "size": size,
        "payload": payload,
        "encoding": encoding,
        "whole": not cut and size <= most,
        "ordinal": None if record.in_first is None else record.in_first + one.at,
        "passed": record.out_first is not None,
        "cause": record.cause,
    }


def _payload(frame: Frame, most: int) -> tuple[str, str]:
    first = frame.body[:most]
    try:
        return first.decode(), "utf-8"
    except UnicodeDecodeError as error:
        if len(first) == most and error.start >= most - 3 and error.reason == "unexpected end of data":
            return first[: error.start].decode(), "utf-8"  # cut inside a letter
        return base64.b64encode(first).decode(), "base64"


def _change(item: Open | Close, distance: int) -> dict[str, Any]:
    closed = isinstance(item, Close)
    return {
        "conn": item.conn,
        "change": "closed" if closed else "opened",
        "time_ns": item.t + distance,
        "cause": item.cause if isinstance(item, Close) else "",
    }


async def _stream(ask: Ask) -> Streamed:
    wanted, limit, most = _Filter(ask), ask.query["limit"], ask.query["payload"]
    live = ask.proxy.live_frames

    async def pieces() -> AsyncGenerator[str | bytes, None]:
        async with live.view(wanted.subjects) as viewer:
            yield ": natsproxy\n\n"
            while True:
                sample, total, size = await live.next(viewer)
                found = [one for one in sample.seen if wanted.wants(one)]
                ahead = times.distance()
                shown = [_shown(one, wanted.name(one.record.conn), most, ahead) for one in found[:limit]]
                changes = [_change(item, ahead) for item in sample.changes[:limit]]
                # Of those that were looked at and are wanted, only `limit` are shown.
                seen = len(sample.seen) * len(shown) // len(found) if found else len(sample.seen)
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
    ),
)
