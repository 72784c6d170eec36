"""Recorded messages with the live values in them: subjects, replies, headers and payloads.

A payload of the JetStream API may hold a stored message as base64; what is inside is translated too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Final

from natsproxy.replay.conversation.identifier_map import IdentifierMap

SHORTEST: Final = 8
"""No shorter text holds an identifier, an inbox or a time."""
_LONGEST: Final = 256 << 10
_LONGEST_JSON: Final = 1 << 20
_STORED: Final = b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response"'
_BASE64: Final = re.compile(rb'("(?:data|hdrs)":")([0-9A-Za-z+/]{16,}=*)"')


def live_text(identifiers: IdentifierMap, text: bytes) -> bytes:
    """Return a subject, a header block or a payload as a client is sent it; it knows the names in it then.

    Large payloads that are no JSON stay as they are.
    """

    known = identifiers.known(text)
    if known is not None:
        return known

    def translate(part: bytes) -> bytes:
        live = identifiers.live_members(identifiers.to_live(part))
        identifiers.keep_literal(live)
        return live

    return _translated(text, translate)


def recorded_text(identifiers: IdentifierMap, text: bytes) -> bytes:
    """Return a live subject, header block or payload with the recorded identifiers."""
    return _translated(text, identifiers.to_recorded)


def _translated(text: bytes, translate: Callable[[bytes], bytes]) -> bytes:
    if len(text) > (_LONGEST_JSON if text[:1] in (b"{", b"[") else _LONGEST):
        return text
    if text.startswith(_STORED):
        text = _BASE64.sub(lambda found: found[1] + _inside(found[2], translate) + b'"', text)
    return translate(text)


def _inside(word: bytes, translate: Callable[[bytes], bytes]) -> bytes:
    try:
        inside = base64.b64decode(word, validate=True)
    except ValueError:
        return word
    return base64.b64encode(_translated(inside, translate))
