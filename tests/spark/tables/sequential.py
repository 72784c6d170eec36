"""Some tables once more, by reading frames one after another: slow, simple, and in one process.

Each takes the frames of captures as clients saw them (`clients_side`) and gives rows as tuples, counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from natsproxy.capture.format.records import Flags
from natsproxy.capture.read.frames import CapturedFrame, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.protocol import headers as blocks
from natsproxy.protocol.jetstream import AckKind, ack_kind, parse_ack
from natsproxy.protocol.template import template
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, MESSAGE_OPS, Op

Rows = Counter[tuple[Any, ...]]
ACK = b"$JS.ACK."


class SideFrame(NamedTuple):
    """A whole frame that a client sent or got, and when (wall clock, ns)."""

    capture: Path
    seen: CapturedFrame
    frame: Frame
    at: int

    @property
    def conn(self) -> int:
        """Return the number of the connection in its run."""
        return self.seen.conn.number

    @property
    def message(self) -> bool:
        """Return True for a message."""
        return self.frame.op in MESSAGE_OPS


def client_frames(captures: Iterable[Path]) -> list[SideFrame]:
    """Return the frames that clients sent and got in captures, in the order of time."""
    found = []
    for path in captures:
        for one in read_frames(open_capture(path)):
            own = one.in_ordinal if one.direction is C2S else one.out_ordinal
            if one.head is not None and own is not None and not one.flags & Flags.CUT:
                at = one.wall + (0 if one.direction is C2S else one.delay)
                found.append(SideFrame(path, one, one.head, at))
    return sorted(found, key=lambda each: each.at)


def subjects(frames: list[SideFrame]) -> Rows:
    """Rows, by recorder: template, minute (Unix), dir, messages, bytes, connections."""
    groups: dict[tuple[Path, str, int, int], list[SideFrame]] = defaultdict(list)
    for each in filter(lambda each: each.message, frames):
        minute = each.seen.wall // 60_000_000_000 * 60
        name = template(each.frame.subject).decode()
        groups[each.capture, name, minute, int(each.seen.direction)].append(each)
    return Counter(
        (
            *key[1:],
            len(group),
            sum(each.frame.size for each in group),
            len({each.conn for each in group}),
        )
        for key, group in groups.items()
    )


def headers(frames: list[SideFrame]) -> Rows:
    """Rows: conn_id, dir, t_ns, subject, name, value; without the status line."""
    return Counter(
        (
            each.conn,
            int(each.seen.direction),
            each.seen.wall,
            each.frame.subject.decode(),
            name.decode(),
            value.decode("utf-8", "replace"),
        )
        for each in frames
        if each.message and each.frame.headers
        for name, value in blocks.parse(each.frame.headers).pairs
    )


def errors(frames: list[SideFrame]) -> Rows:
    """Rows: conn_id, t_ns, text."""
    return Counter(
        (each.conn, each.at, each.frame.args.strip(b"'").decode())
        for each in frames
        if each.frame.op is Op.ERR
    )


def requests(frames: list[SideFrame]) -> Rows:
    """Rows: reply, subject, requester, t1, t4, replies; no pulls, and none that share a reply subject."""
    asked: dict[tuple[Path, bytes], list[SideFrame]] = defaultdict(list)
    answers: dict[tuple[Path, bytes], list[SideFrame]] = defaultdict(list)
    for each in filter(lambda each: each.message, frames):
        frame, reply = each.frame, each.frame.reply
        if each.seen.direction is not C2S:
            answers[each.capture, frame.subject].append(each)
        elif reply and not reply.startswith(ACK) and not _pulls(frame):
            asked[each.capture, reply].append(each)
    rows = Rows()
    for key, (one, *others) in asked.items():
        if others:
            continue
        own = [each for each in answers[key] if each.conn == one.conn]
        came = [each for each in own if each.frame.sid == own[0].frame.sid] or answers[key]
        early = any(each.at < one.at for each in came)
        came = [each for each in came if each.at >= one.at and blocks.parse(each.frame.headers).status != 503]
        first = came[0].at if came and not early else None
        texts = one.frame.reply.decode(), one.frame.subject.decode()
        rows[*texts, one.conn, one.at, first, len(came)] += 1
    return rows


def _pulls(frame: Frame) -> bool:
    is_next = frame.subject.startswith(ACK) and frame.body.startswith(b"+NXT")
    return is_next or b".CONSUMER.MSG.NEXT." in frame.subject


def js_acks(frames: list[SideFrame]) -> Rows:
    """Rows: stream, consumer, delivered, stream_seq, delivered_ns, answer, answered_ns; answers but +WPI."""
    rows: dict[bytes, list[Any]] = {}
    all_at_once = set[tuple[str, str]]()
    for each in filter(lambda each: each.message, frames):
        if b'"ack_policy": "all"' in each.frame.body or b'"ack_policy":"all"' in each.frame.body:
            stream, consumer = each.frame.subject.decode().split(".")[4:6]
            all_at_once.add((stream, consumer))
        ack = parse_ack(each.frame.reply if each.seen.direction is not C2S else each.frame.subject)
        if ack is None:
            continue
        if each.seen.direction is not C2S:
            names = ack.stream.decode(), ack.consumer.decode()
            delivery = [*names, ack.delivered, ack.stream_seq, each.at, "none", None]
            rows.setdefault(each.frame.reply, delivery)  # what comes later is a copy
        elif (row := rows.get(each.frame.subject)) and row[6] is None:
            kind = ack_kind(each.frame.body)
            clear = kind in (AckKind.NAK, AckKind.TERM, AckKind.NEXT)
            if not clear and len(each.frame.body) < each.frame.size - each.frame.header_size:
                continue  # its payload was not recorded
            if kind is not AckKind.PROGRESS:
                row[5:] = ["other" if kind is AckKind.NONE else kind.value, each.at]
            if kind is AckKind.ACK and (row[0], row[1]) in all_at_once:
                for other in rows.values():
                    if other[:2] == row[:2] and other[3] <= row[3] and other[6] is None:
                        other[5:] = ["ack", each.at]
    return Counter(map(tuple, rows.values()))


def of_table(rows: Iterable[dict[str, Any]], *names: str) -> Rows:
    """Return columns of a table's rows, counted."""
    return Counter(tuple(row[name] for name in names) for row in rows)


def known_tables(captures: Iterable[Path]) -> Iterator[tuple[str, Rows, tuple[str, ...]]]:
    """Yield each table that is known here: its name, its rows, the columns that they have."""
    frames = client_frames(captures)
    yield "subjects", subjects(frames), ("template", "minute", "dir", "messages", "bytes", "connections")
    yield "headers", headers(frames), ("conn_id", "dir", "t_ns", "subject", "name", "value")
    yield "errors", errors(frames), ("conn_id", "t_ns", "text")
    yield "requests", requests(frames), ("reply", "subject", "requester", "t1", "t4", "replies")
    names = ("stream", "consumer", "delivered", "stream_seq", "delivered_ns", "answer", "answered_ns")
    yield "js_acks", js_acks(frames), names
