"""What a client hears that says what was never recorded: the clearest that its library shows a person.

A `-ERR` that is not one of the server's own ends the connection in most libraries, and the cause is gone with
it.  These arrive, and say what is wrong
- a request of the JetStream API: an API error, whose description every library puts into its exception;
- a pull, a direct get: a status that no library takes for the end of a pull (400), with a description;
- any other request: the `-ERR` of a denied publish, which libraries hand to the error callback or log, with
  the reason behind it, and a 503, which ends the request at once (and has no room for a reason);
- a publish without a reply, a subscription: that `-ERR` alone.
"""

from __future__ import annotations

import json
from typing import Final

from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import parse_api
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

REASON: Final = b"not in the capture"
_MARK: Final = b"Natsproxy-Mismatch"
_NO_JSON: Final = (b"CONSUMER.MSG.NEXT", b"DIRECT.GET")
"""Calls of the API that are answered with messages and statuses."""


def mismatch_reply(frame: Frame, sid: bytes | None) -> bytes:
    """Return what is said about a frame.  sid: where its client hears answers with headers, if anywhere."""
    publish = frame.op != Op.SUB
    what = b"Publish" if publish else b"Subscription"
    error = encode.err(b'Permissions Violation for %b to "%b": %b' % (what, frame.subject, REASON))
    if not publish or sid is None:
        return error
    call = parse_api(frame.subject)
    if call is None:
        return error + _status(frame, sid, b"503")
    if call.verb in _NO_JSON:
        return _status(frame, sid, b"400")
    text = f"natsproxy: {frame.subject.decode('utf-8', 'replace')} is {REASON.decode()}"
    body = json.dumps({"error": {"code": 500, "description": text}}, separators=(",", ":")).encode()
    return encode.msg(frame.reply, sid, body, headers=headers.build([(_MARK, REASON)]))


def _status(frame: Frame, sid: bytes, code: bytes) -> bytes:
    pairs = [(b"Nats-Subject", frame.subject), (_MARK, REASON)]
    block = headers.build(pairs, code=code, description=b"natsproxy: " + REASON)
    return encode.msg(frame.reply, sid, headers=block)
