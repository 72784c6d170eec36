"""A block of a capture as columns, without Spark and without Arrow.

A column is a list with one entry per frame; `FIELDS` is the schema.  This is the pure twin of `_columns.pyx`
and the authority where the two differ; `arrow.py` makes batches of either.  A frame that is not whole (cut,
truncated, under a payload policy) has the fields of its control line as far as those were recorded
(`CapturedFrame.head`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from natsproxy.capture.format.records import Flags, Frames
from natsproxy.capture.read.frames import CapturedFrame, Query, frames_of
from natsproxy.capture.read.segment import BlockRef, CaptureFile
from natsproxy.protocol import headers
from natsproxy.protocol.errors import classify, err_text, subject_of
from natsproxy.protocol.jetstream_message import NOTHING, JetStreamMessage, describe
from natsproxy.protocol.template import template
from natsproxy.wire.ops import Op

Row = tuple[BlockRef, int, CapturedFrame]


def _text(raw: bytes) -> str | None:
    return raw.decode("utf-8", "replace") if raw else None


def _field(name: str) -> Callable[[Row, int], Any]:
    return lambda row, _: None if row[2].head is None else _text(getattr(row[2].head, name))


def _number(name: str) -> Callable[[Row, int], Any]:
    return lambda row, _: None if row[2].head is None else getattr(row[2].head, name)


def _op(row: Row, _: int) -> str | None:
    frame = row[2].head
    return None if frame is None else frame.op.label


def _template(row: Row, _: int) -> str | None:
    frame = row[2].head
    return None if frame is None or not frame.subject else _text(template(frame.subject))


def _payload(row: Row, most: int) -> bytes | None:
    frame = row[2].head
    if frame is None or not frame.size or most == 0:
        return None
    return frame.body if most < 0 else frame.body[:most]


def _status(row: Row, _: int) -> int | None:
    frame = row[2].head
    if frame is None or frame.op != Op.HMSG or frame.headers[8:9] != b" ":
        return None
    return headers.parse(frame.headers).status


def _err(row: Row, _: int) -> str | None:
    frame = row[2].head
    return _text(frame.args) if frame is not None and frame.op == Op.ERR else None


def _error(row: Row) -> str | None:
    """Return the text of an -ERR."""
    frame = row[2].head
    return err_text(frame.args) if frame is not None and frame.op == Op.ERR else None


def _err_kind(row: Row, _: int) -> str | None:
    text = _error(row)
    return None if text is None else classify(text).kind.name


def _err_subject(row: Row, _: int) -> str | None:
    text = _error(row)
    return None if text is None else _text(subject_of(text))


def _quoted(name: str) -> Callable[[Row, int], Any]:
    def read(row: Row, _: int) -> str | None:
        text = _error(row)
        return None if text is None else _text(getattr(classify(text), name))

    return read


def _args(row: Row, _: int) -> str | None:
    frame = row[2].head
    return _text(frame.args) if frame is not None and frame.op != Op.ERR else None


def _jetstream_of(one: CapturedFrame) -> JetStreamMessage:
    return NOTHING if one.head is None else describe(one.head)


def _value(found: JetStreamMessage, name: str) -> Any:
    value = getattr(found, name)
    return _text(value) if isinstance(value, bytes) else value


def _jetstream(name: str) -> Callable[[Row, int], Any]:
    return lambda row, _: _value(_jetstream_of(row[2]), name)


FIELDS: Final[dict[str, tuple[str, Callable[[Row, int], Any]]]] = {
    "recorder": ("string", lambda row, _: row[0].segment.recorder.hex()),
    "segment": ("int", lambda row, _: row[0].segment.number),
    "block_off": ("bigint", lambda row, _: row[0].block.offset),
    "idx": ("int", lambda row, _: row[1]),
    "t_ns": ("bigint", lambda row, _: row[2].wall),
    "ts": ("timestamp", lambda row, _: row[2].wall // 1000),
    "conn_id": ("bigint", lambda row, _: row[2].conn.number),
    "dir": ("int", lambda row, _: int(row[2].direction)),
    "op": ("string", _op),
    "in_ordinal": ("bigint", lambda row, _: row[2].in_ordinal),
    "out_ordinal": ("bigint", lambda row, _: row[2].out_ordinal),
    "subject": ("string", _field("subject")),
    "template": ("string", _template),
    "reply": ("string", _field("reply")),
    "sid": ("string", _field("sid")),
    "queue": ("string", _field("queue")),
    "header_size": ("int", _number("header_size")),
    "size": ("int", _number("size")),
    "headers": ("string", _field("headers")),
    "payload": ("binary", _payload),
    "status": ("int", _status),
    "err": ("string", _err),
    "err_kind": ("string", _err_kind),
    "err_subject": ("string", _err_subject),
    "err_queue": ("string", _quoted("queue")),
    "err_sid": ("string", _quoted("sid")),
    "cause": ("string", lambda row, _: row[2].cause),
    "delay_ns": ("bigint", lambda row, _: row[2].delay),
    "flags": ("int", lambda row, _: row[2].flags),
    "args": ("string", _args),
    "of": ("bigint", lambda row, _: row[2].of),
    "js_kind": ("string", _jetstream("kind")),
    "js_verb": ("string", _jetstream("verb")),
    "js_domain": ("string", _jetstream("domain")),
    "js_stream": ("string", _jetstream("stream")),
    "js_consumer": ("string", _jetstream("consumer")),
    "js_delivered": ("bigint", _jetstream("delivered")),
    "js_stream_seq": ("bigint", _jetstream("stream_seq")),
    "js_consumer_seq": ("bigint", _jetstream("consumer_seq")),
    "js_pending": ("bigint", _jetstream("pending")),
    "js_batch": ("bigint", _jetstream("batch")),
    "js_err_code": ("int", _jetstream("err_code")),
    "js_error": ("string", _jetstream("error")),
    "js_ack_policy": ("string", _jetstream("ack_policy")),
    "js_flow_control": ("int", _jetstream("flow_control")),
}
"""Column name: its Spark SQL type, and the function that reads it from a frame.

t_ns: wall clock in ns since 1970; ts: the same in microseconds.  dir: 0 c2s, 1 s2c.  (recorder, segment,
block_off, idx) identify a row.  in_ordinal and out_ordinal: None where that leg did not see the frame.
cause: the rule that dropped, made or changed the frame.  payload: as many bytes as were asked for.
err_kind: the row of `protocol.errors` for an -ERR, err_subject, err_queue, err_sid: the names in its text.
args: the argument text of INFO and CONNECT, the max of UNSUB (that of -ERR is err).  of: the in_ordinal of
the frame that a changed frame replaces; None for frames that the proxy made.  js_...: the fields of
`JetStreamMessage` (natsproxy/protocol/jetstream_message.py).
"""
_JETSTREAM: Final = {f"js_{name}": name for name in JetStreamMessage._fields}


def columns(
    file: CaptureFile,
    ref: BlockRef,
    names: Collection[str],
    *,
    payload: int = 0,
    query: Query | None = None,
) -> dict[str, list[Any]]:
    """Return the columns `names` of the frames of a block that match `query`.

    payload: bytes of each payload (0 none, -1 all).  Records that the query rules out as a whole (by
    connection, direction or time) are skipped unread; idx advances by the number of frames that they claim.
    """
    makers = [(name, FIELDS[name][1]) for name in names if name not in _JETSTREAM]
    found: dict[str, list[Any]] = {name: [] for name in names}
    jetstream = [name for name in names if name in _JETSTREAM]
    messages: list[JetStreamMessage] = []  # each is described once for all its columns
    idx = 0
    for item in file.items(ref):
        if not isinstance(item, Frames):
            continue
        if query is not None and passes_over(query, ref, item):
            idx += count_of(item)
            continue
        for one in frames_of(ref, item):
            row = (ref, idx, one)
            idx += 1
            if query is None or query.wants(one):
                for name, make in makers:
                    found[name].append(make(row, payload))
                if jetstream:
                    messages.append(_jetstream_of(one))
    for name in jetstream:
        field = _JETSTREAM[name]
        found[name] = [None if each is NOTHING else _value(each, field) for each in messages]
    return found


def passes_over(query: Query, ref: BlockRef, item: Frames) -> bool:
    """Tell whether a query rules out all frames of a record: they share connection, direction and time."""
    if not query.wants_record(ref, item):
        return True
    wall = ref.wall(item.t)
    return (query.start is not None and wall < query.start) or (query.end is not None and wall > query.end)


def count_of(item: Frames) -> int:
    """Return the number of frames that a record claims to have."""
    return 1 if item.flags & ~Flags.REDACTED else item.frames
