"""Recorded messages with the live values in them: subjects, replies, headers and payloads.

A payload of the JetStream API may hold a stored message as base64; what is inside is translated too.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from natsproxy.replay.conversation.identifier_map import IdentifierMap

_SHORTEST: Final = 8  # no shorter text holds an identifier, an inbox or a time
_LONGEST: Final = 64 << 10
_LONGEST_JSON: Final = 1 << 20
_STORED: Final = b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response"'
_BASE64: Final = re.compile(rb'("(?:data|hdrs)":")([0-9A-Za-z+/]{16,}=*)"')


def live_text(identifiers: IdentifierMap, text: bytes) -> bytes:
    """Return a subject, a header block or a payload as a client is sent it; it knows the names in it then.

    Large payloads that are no JSON stay as they are.
    """
    if len(text) < _SHORTEST or _is_long(text):
        return text
    if text.startswith(_STORED):
        text = _BASE64.sub(lambda found: _stored(identifiers, found), text)
    live = identifiers.to_live(text)
    identifiers.keep_literal(text if live is text else live)
    return live


def recorded_text(identifiers: IdentifierMap, text: bytes) -> bytes:
    """Return a live subject, header block or payload with the recorded identifiers."""
    return text if _is_long(text) else identifiers.to_recorded(text)


def _is_long(text: bytes) -> bool:
    return len(text) > _LONGEST and (text[:1] not in (b"{", b"[") or len(text) > _LONGEST_JSON)


def _stored(identifiers: IdentifierMap, found: re.Match[bytes]) -> bytes:
    try:
        inside = base64.b64decode(found[2], validate=True)
    except ValueError:
        return found[0]
    return found[1] + base64.b64encode(live_text(identifiers, inside)) + b'"'
