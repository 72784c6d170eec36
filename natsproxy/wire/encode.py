"""Frames to bytes: whole frames from their parts, and frames whose control line alone changes.

Nothing here validates: the caller knows whether a frame may be sent.
"""

from __future__ import annotations

from typing import Final

from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import OPS, Op

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
OK: Final = b"+OK\r\n"


def message(
    op: Op,
    subject: bytes,
    *,
    sid: bytes = b"",
    reply: bytes = b"",
    headers: bytes = b"",
    body: bytes = b"",
) -> bytes:
    """Return a PUB, HPUB, MSG or HMSG; `headers` is a whole header block, only for HPUB and HMSG."""
    return (
        message_line(op, subject, sid, reply, len(headers), len(headers) + len(body))
        + headers
        + body
        + b"\r\n"
    )


def message_line(op: Op, subject: bytes, sid: bytes, reply: bytes, header_size: int, size: int) -> bytes:
    """Return the control line of a message, CRLF included."""
    parts = [OPS[op].token, subject]
    parts += [part for part in (sid, reply) if part]
    if OPS[op].headers:
        parts.append(b"%d" % header_size)
    parts.append(b"%d\r\n" % size)
    return b" ".join(parts)


def pub(subject: bytes, body: bytes = b"", *, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """Return a PUB, or an HPUB where there are headers."""
    return message(Op.HPUB if headers else Op.PUB, subject, reply=reply, headers=headers, body=body)


def msg(subject: bytes, sid: bytes, body: bytes = b"", *, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """Return a MSG, or an HMSG where there are headers."""
    to = b"%b %b %b" % (subject, sid, reply) if reply else b"%b %b" % (subject, sid)
    if not headers:
        return b"MSG %b %d\r\n%b\r\n" % (to, len(body), body)
    size = len(headers)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, size, size + len(body), headers, body)


def sub(subject: bytes, sid: bytes, queue: bytes = b"") -> bytes:
    """Return a SUB."""
    return b" ".join(part for part in (b"SUB", subject, queue, sid) if part) + b"\r\n"


def unsub(sid: bytes, limit: int = 0) -> bytes:
    """Return an UNSUB; `limit` 0 is none: unsubscribe at once."""
    return b"UNSUB %s %d\r\n" % (sid, limit) if limit else b"UNSUB %s\r\n" % sid


def info(args: bytes) -> bytes:
    """Return an INFO as nats-server writes it: with a blank before CRLF (server/util.go)."""
    return b"INFO " + args + b" \r\n"


def connect(args: bytes) -> bytes:
    """Return a CONNECT."""
    return b"CONNECT " + args + b"\r\n"


def err(text: str | bytes) -> bytes:
    """Return an -ERR; the text is put in single quotes, as nats-server always does."""
    return b"-ERR '" + (text.encode() if isinstance(text, str) else text) + b"'\r\n"


def with_line(frame: Frame, *, subject: bytes | None = None, reply: bytes | None = None) -> bytes:
    """Return the frame's bytes with subjects of its control line changed and everything after it kept.

    Of a frame with a missing part it returns the bytes received so far; the rest follows unchanged.
    """
    subject = frame.subject if subject is None else subject
    reply = frame.reply if reply is None else reply
    if frame.op == Op.SUB:
        return sub(subject, frame.sid, frame.queue)
    line = message_line(frame.op, subject, frame.sid, reply, frame.header_size, frame.size)
    return line + frame.buffer[frame.line_end : frame.end]


def with_payload(frame: Frame, *, headers: bytes | None = None, body: bytes | None = None) -> bytes:
    """Return a whole message frame with another header block or body, its sizes corrected.

    A header block given to a PUB or MSG makes it an HPUB or HMSG; an empty one makes it plain again.
    """
    headers = frame.headers if headers is None else headers
    body = frame.body if body is None else body
    plain = Op.PUB if frame.op in (Op.PUB, Op.HPUB) else Op.MSG
    op = Op(plain + 1) if headers else plain  # HPUB and HMSG follow PUB and MSG in `Op`
    return message(op, frame.subject, sid=frame.sid, reply=frame.reply, headers=headers, body=body)
