"""Recorded payloads as sent to a live client: with live values, in the form they were recorded in."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any, Final

from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import members
from natsproxy.replay.conversation.difference import ABSENT
from natsproxy.replay.conversation.identifier_map import STORED, IdentifierMap, encoded, live_text
from natsproxy.replay.conversation.json_difference import parse
from natsproxy.replay.conversation.payload_codecs import Codec, scalar_of, scalar_text
from natsproxy.wire.frames import Frame

CodecOf = Callable[[bytes], Codec | None]
_SUBJECT: Final = b"Nats-Subject"
_DATA: Final = re.compile(rb'("data":")([0-9A-Za-z+/]+=*)"')


def live_payload(identifiers: IdentifierMap, frame: Frame, codec_of: CodecOf) -> bytes:
    """Return the payload of a recorded message with the live values in it.

    codec_of: returns the codec of a subject's payloads.
    """
    body = frame.body
    if body.startswith(STORED):
        return live_text(identifiers, _stored(identifiers, body, codec_of))
    subjects = [frame.subject]
    if frame.header_size:
        subjects.append(headers.get(frame.headers, _SUBJECT) or b"")
    codec = next(filter(None, map(codec_of, subjects)), None)
    return live_text(identifiers, body) if codec is None else _live_body(identifiers, body, codec)


def _stored(identifiers: IdentifierMap, body: bytes, codec_of: CodecOf) -> bytes:
    """Return the answer to a read of a stream with the live values in the stored payload, if a codec fits."""
    message = members(body).get("message")
    subject = message.get("subject") if isinstance(message, dict) else None
    codec = codec_of(encoded(subject)) if isinstance(subject, str) else None
    if codec is None:
        return body

    def inside(found: re.Match[bytes]) -> bytes:
        try:
            data = base64.b64decode(found[2], validate=True)
        except ValueError:
            return found[0]
        return found[1] + base64.b64encode(_live_body(identifiers, data, codec)) + b'"'

    return _DATA.sub(inside, body, count=1)


def _live_body(identifiers: IdentifierMap, body: bytes, codec: Codec) -> bytes:
    if parse(body) is not ABSENT:  # a publish ack, or an error
        return live_text(identifiers, body)
    if codec.encode is None:
        return body
    try:
        value = codec.read(body)
        live = _live_value(identifiers, value)
        return body if live == value else codec.encode(live)
    except (ValueError, RecursionError):  # it is none of this form
        return body


def _live_value(identifiers: IdentifierMap, value: Any, name: str = "") -> Any:
    if isinstance(value, bytes) and not name:
        return live_text(identifiers, value)
    if isinstance(value, dict):
        return {key: _live_value(identifiers, one, str(key)) for key, one in value.items()}
    if isinstance(value, list):
        return [_live_value(identifiers, one, name or "0") for one in value]
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return value
    member = identifiers.live_member(name, value) if isinstance(value, str | int | float) else value
    if member != value:
        return member
    if isinstance(value, str):
        return live_text(identifiers, encoded(value)).decode("utf-8", "surrogatepass")
    text = repr(value) if isinstance(value, int | float) else scalar_text(value)
    live = identifiers.to_live(text.encode()).decode()
    if live == text:
        return value
    return type(value)(live) if isinstance(value, int | float) else scalar_of(live, value)
