"""Values in JSON text replaced by placeholders, with all other bytes kept.

A placeholder has the type of the value, so that a program still reads it: `"[filtered]"`, 0, false, {} or [];
null stays.  Members are found in any letter case, escaped or not, and in every duplicate, since readers
differ in which one they use.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from natsproxy.capture.filter.filters import FILTERED
from natsproxy.protocol import gojson
from natsproxy.protocol.places import Path

WHOLE: Final = f'"{FILTERED}"'.encode()
"""A payload that may hold a filtered value at a place that cannot be found."""
_BLANK: Final = b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n"
"""Bytes before the first brace, in any encoding of Unicode."""
_ACK: Final = frozenset({"stream", "domain", "seq", "duplicate", "batch", "count", "val", "error"})
_STORED: Final = ("hdrs", "data")

Cut = tuple[int, int, str]


def may_be_json(body: bytes) -> bool:
    """Tell whether some reader could take a payload for a JSON object or array."""
    return body.lstrip(_BLANK)[:1] in (b"{", b"[")


def scrub_members(body: bytes, pointers: Sequence[Path]) -> bytes:
    """Return a payload with placeholders at `pointers`; `WHOLE` where they cannot be found.

    A payload that is neither an object nor an array is kept.
    """
    if not pointers or not may_be_json(body):
        return body
    try:
        gojson.loads(body)
    except ValueError:
        return WHOLE
    text = gojson.to_text(body)
    folded = [tuple(map(gojson.fold, pointer)) for pointer in pointers]
    return _replaced(
        body, text, [(start, end, _placeholder(text[start])) for _, start, end in _values(text, folded)]
    )


def scrub_strings(body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a payload with `change` applied to each string in it, names of members included."""
    if not may_be_json(body):
        return body
    try:
        gojson.loads(body)
    except ValueError:
        return WHOLE
    text = gojson.to_text(body)
    cuts: list[Cut] = []
    for token in gojson.lex(text):
        if token.text[0] == '"':
            value = gojson.to_bytes(json.loads(token.text))
            changed = change(value)
            if changed != value:
                cuts.append((token.start, token.end, gojson.to_text(gojson.dumps(gojson.to_text(changed)))))
    return _replaced(body, text, cuts)


def scrub_stored(body: bytes, scrub: Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]) -> bytes:
    """Return an answer of STREAM.MSG.GET with the message in it scrubbed.

    scrub: returns the header block and the payload of (subject, header block, payload) in their new form.
    """
    if b".v1.stream_msg_get_response" not in body:
        return body
    try:
        message = gojson.loads(body)["message"]
        subject = gojson.to_bytes(message["subject"])
        old = [base64.b64decode(message.get(name) or "") for name in _STORED]
    except (KeyError, TypeError):  # an error in place of a message
        return body
    except (ValueError, AttributeError):
        return WHOLE
    text = gojson.to_text(body)
    new = scrub(subject, *old)
    changed = [at for at in range(len(_STORED)) if new[at] != old[at]]
    paths = [("message", _STORED[at]) for at in changed]
    return _replaced(
        body,
        text,
        [
            (start, end, f'"{base64.b64encode(new[changed[index]]).decode()}"')
            for index, start, end in _values(text, paths)
        ],
    )


def is_publish_ack(body: bytes) -> bool:
    """Tell whether a payload is JetStream's answer to a publish, which says nothing of the message."""
    try:
        answer = gojson.loads(body)
    except ValueError:
        return False
    if not isinstance(answer, dict) or not answer.keys() <= _ACK:
        return False
    error = answer.get("error")
    return isinstance(answer.get("seq"), int) or (isinstance(error, dict) and "err_code" in error)


def _placeholder(first: str) -> str:
    known = {'"': f'"{FILTERED}"', "{": "{}", "[": "[]", "t": "false", "f": "false", "n": "null"}
    return known.get(first, "0")


def _replaced(body: bytes, text: str, cuts: list[Cut]) -> bytes:
    if not cuts:
        return body
    parts: list[str] = []
    last = 0
    for start, end, new in cuts:
        parts += (text[last:start], new)
        last = end
    return gojson.to_bytes("".join((*parts, text[last:])))


def _values(text: str, pointers: Sequence[Path]) -> Iterator[tuple[int, int, int]]:
    """Yield (index of a pointer, start, end) of each outermost value at `pointers` in valid JSON text."""
    longest = max(map(len, pointers), default=0)
    # Of each open container the index of the entry, or the key of the member: None before the key.
    stack: list[int | str | None] = []
    found, start, depth = -1, 0, 0
    last = ""
    for token in gojson.lex(text):
        mark = token.text
        if mark == ":":
            stack[-1] = gojson.fold(json.loads(last))
        elif mark == ",":
            at = stack[-1]
            stack[-1] = at + 1 if isinstance(at, int) else None
        elif mark in ("}", "]"):
            stack.pop()
        elif not stack or stack[-1] is not None:  # a value begins
            if found < 0 and len(stack) <= longest:
                found, start, depth = _index(pointers, stack), token.start, len(stack)
            if mark in ("{", "["):
                stack.append(None if mark == "{" else 0)
        if found >= 0 and len(stack) == depth:
            yield found, start, token.end
            found = -1
        last = mark


def _index(pointers: Sequence[Path], stack: Sequence[int | str | None]) -> int:
    """Return the index of the pointer to the value that begins, -1 without one."""
    for index, pointer in enumerate(pointers):
        if len(pointer) == len(stack) and all(
            ours in ("*", str(theirs)) for ours, theirs in zip(pointer, stack, strict=True)
        ):
            return index
    return -1
