"""The secrets of an application, at the places that the user named, replaced before they reach a disk.

Theory
1. A header's value, a secret token of a subject and a payload that is secret as a whole become `[filtered]`.
   A member of a JSON payload becomes a placeholder of its type (`scrub_json.py`).  All other bytes are kept;
   sizes are corrected.
2. A place may be limited to subjects.  A message counts for its own subject, for that of the request that it
   answers, and for the one that `Nats-Subject` gives a stored message.
3. A subject is in many places: the control line, replies, header values, -ERR, subjects and JSON of the
   JetStream API.  All of them are searched.
4. What cannot be checked is removed: JSON that does not parse, the payload of an incomplete frame, an
   incomplete control line if subjects are secret.
5. A record in which no word of a filter occurs is kept without parsing: nearly all of them.
6. The same input gives the same output, and a second pass changes nothing: so a live frame is compared with a
   recorded one after the same pass over both.  A user's function need not bear a second pass: it is called
   for live frames only.  For an answer it gets the subject of the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Final

from natsproxy.capture.filter.filters import FILTERED, Filters
from natsproxy.capture.filter.scrub_json import (
    is_publish_ack,
    may_be_json,
    scrub_members,
    scrub_stored,
    scrub_strings,
)
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import is_api
from natsproxy.protocol.places import Path, matches_any
from natsproxy.protocol.subjects import collide, matches
from natsproxy.wire import encode
from natsproxy.wire.frames import NO_LIMIT, Frame
from natsproxy.wire.ops import MESSAGE_OPS, Direction, Op
from natsproxy.wire.parse import EVERYTHING, frames, head
from natsproxy.wire.scanner import Scanner

_FILTERED: Final = FILTERED.encode()
_MOST: Final = 65_536  # requests awaiting their answers
_WORD: Final = re.compile(rb"[^\s'\",;]+")
_WILD: Final = (b"*", b">")
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]+")
_IN_BASE64: Final = b"stream_msg_get_response"
_ODD: Final = (b"\\u", b"\0", "\u017f".encode(), "\u212a".encode())
"""Signs that words may be encoded differently in JSON: escapes, UTF-16, letters that fold to ASCII."""
_LINES: Final = re.compile(rb"[^\n]*\n|[^\n]+")


class Scrubber:
    """Applies filters to the frames of one capture, in order; it remembers requests for their answers."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._scopes = [*(place.subject for place in filters.json if place.subject != b">"), *filters.bodies]
        self._requests: dict[bytes, bytes] = {}
        self._words = None if filters.scrub is not None else _words(filters)

    def may_touch(self, data: bytes) -> bool:
        """Tell whether `frame` may change one of these frames, or remember it."""
        # The answer to a request whose payload is secret may be anything.
        awaited = bool(self._filters.bodies and self._requests)
        if awaited or self._words is None or any(odd in data for odd in _ODD):
            return True
        lower = data.lower()
        return any(word in lower for word in self._words)

    def frame(self, frame: Frame) -> bytes:
        """Return the bytes of a whole frame without filtered values."""
        if not self.may_touch(frame.raw):
            return frame.raw
        if frame.op == Op.ERR:
            text = self.text(frame.args)
            return frame.raw if text == frame.args else encode.err(text.strip(b"'"))
        if frame.op == Op.SUB:
            subject = self.subject(frame.subject)
            return frame.raw if subject == frame.subject else encode.with_line(frame, subject=subject)
        if frame.op not in MESSAGE_OPS:
            return frame.raw
        block, body = self._contents(self._subjects(frame), frame.headers, frame.body)
        subject, reply = self.subject(frame.subject), self.subject(frame.reply)
        if (subject, reply, block, body) == (frame.subject, frame.reply, frame.headers, frame.body):
            return frame.raw
        return encode.message(frame.op, subject, sid=frame.sid, reply=reply, headers=block, body=body)

    def seen(self, frame: Frame, direction: Direction, asked: bytes = b"") -> Frame:
        """Return a whole frame as a recording would show it.

        asked: the subject of the request that it answers, where that did not pass here.
        """
        wanted = asked and (self._filters.scrub is not None or _is_on(self._scopes, asked))
        if wanted and frame.subject not in self._requests:
            _remember(self._requests, frame.subject, asked)
        data = self.frame(frame)
        return frame if data == frame.raw else next(frames(data, direction))

    def cut(self, data: bytes, direction: Direction) -> bytes:
        """Return frames, the last one incomplete, without bytes that may be a filtered value."""
        kept: list[bytes] = []
        scanner = Scanner(direction, EVERYTHING, line_limit=1 << 20, hold=NO_LIMIT, buffer_limit=NO_LIMIT)
        scanner.feed(data)
        read = 0
        while isinstance(segment := scanner.next(), Frame):
            kept.append(self.frame(segment))
            read = scanner.offset
        rest = data[read:]
        begun = head(rest, direction)
        if begun is not None:
            kept.append(self.partial(begun))
        elif rest and self._filters.subjects:
            kept.append(b'"[withheld: %d bytes]"' % len(rest))
        else:
            kept.append(rest)
        return b"".join(kept)

    def partial(self, frame: Frame) -> bytes:
        """Return the bytes of an incomplete message, without bytes that may be a filtered value."""
        if frame.op not in MESSAGE_OPS:
            return frame.raw
        subjects = self._subjects(frame)
        whole = len(frame.headers) == frame.header_size
        block = self._contents(subjects, frame.headers, b"")[0] if whole else b""
        secret = (
            self._is_secret(subjects)
            or self._filters.scrub is not None
            or (may_be_json(frame.body) and (self._pointers(subjects) or self._filters.subjects))
        )
        subject, reply = self.subject(frame.subject), self.subject(frame.reply)
        same = (subject, reply, block) == (frame.subject, frame.reply, frame.headers)
        if same and not secret:
            return frame.raw
        size = frame.size - frame.header_size + len(block)
        return encode.message_line(frame.op, subject, frame.sid, reply, len(block), size) + block

    def subject(self, subject: bytes) -> bytes:
        """Return a subject, or pattern, with its secret tokens replaced."""
        if not subject or not self._filters.subjects:
            return subject
        new = self._tokens(subject)
        if new == subject and subject.startswith(b"$JS.") and is_api(subject):
            tokens = subject.split(b".")
            for start in range(3, len(tokens)):  # some API subjects end with an application's subject
                tail = b".".join(tokens[start:])
                if (changed := self._tokens(tail)) != tail:
                    return b".".join((*tokens[:start], changed))
        return new

    def text(self, text: bytes) -> bytes:
        """Return a text for people with the secret tokens of the subjects in it replaced."""
        if not self._filters.subjects:
            return text
        return _WORD.sub(lambda found: self.subject(found[0]), text)

    def facts(self, value: Any) -> Any:
        """Return facts of an event with the secret tokens of the subjects in their texts replaced."""
        if isinstance(value, str):
            return self.text(value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
        if isinstance(value, bytes):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.facts(one) for key, one in value.items()}
        return [self.facts(one) for one in value] if isinstance(value, list | tuple) else value

    def _tokens(self, subject: bytes) -> bytes:
        for pattern in self._filters.subjects:
            if not collide(pattern, subject):
                continue
            wanted, tokens = pattern.split(b"."), subject.split(b".")
            for at, token in enumerate(tokens):
                if token not in _WILD and wanted[min(at, len(wanted) - 1)] in _WILD:
                    tokens[at] = _FILTERED
            subject = b".".join(tokens)
        return subject

    # -- messages

    def _subjects(self, frame: Frame) -> tuple[bytes, ...]:
        """Return the subjects that a message counts for."""
        scrub = self._filters.scrub
        if not self._scopes and scrub is None:
            return (frame.subject,)
        found = [frame.subject, self._requests.get(frame.subject, b"")]
        if frame.header_size and b"Nats-Subject:" in frame.headers:
            found.append(headers.get(frame.headers, b"Nats-Subject") or b"")
        subjects = tuple(subject for subject in found if subject)
        if frame.reply and not frame.reply.startswith(b"$JS.ACK."):
            scope = next((one for one in reversed(subjects) if _is_on(self._scopes, one)), None)
            if scope is None and scrub is not None:
                scope = subjects[-1]
            if scope is not None:
                _remember(self._requests, frame.reply, scope)
        return subjects

    def _pointers(self, subjects: tuple[bytes, ...]) -> list[Path]:
        return [
            place.pointer
            for place in self._filters.json
            if place.pointer is not None and (place.subject == b">" or any(map(place.on, subjects)))
        ]

    def _is_secret(self, subjects: tuple[bytes, ...]) -> bool:
        """Tell whether the whole payload is secret."""
        return any(_is_on(self._filters.bodies, subject) for subject in subjects)

    def _contents(self, subjects: tuple[bytes, ...], block: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return a header block and a payload without filtered values."""
        if body and self._is_secret(subjects) and not is_publish_ack(body):
            return self._headers(block), _FILTERED
        body = scrub_members(body, self._pointers(subjects))
        body = scrub_stored(body, self._stored)
        if (self._filters.subjects and b"io.nats." in body[:100]) or any(map(is_api, subjects)):
            body = scrub_strings(body, self.subject)
        if body and self._filters.scrub is not None and not is_publish_ack(body):
            body = self._filters.scrub(subjects[-1], block, body)
        return self._headers(block), body

    def _stored(self, subject: bytes, block: bytes, body: bytes) -> tuple[bytes, bytes]:
        return self._contents((subject,), block, body)

    def _headers(self, block: bytes) -> bytes:
        return b"".join(self._header_lines(block)) if block else block

    def _header_lines(self, block: bytes) -> Iterator[bytes]:
        secret = False
        for at, line in enumerate(_LINES.findall(block)):
            name, colon, rest = line.partition(b":")
            value = rest.rstrip(b"\r\n")
            if not at or not colon or name[:1] in (b" ", b"\t"):
                # Some readers take such a line for more of the value before it.
                if not at or not secret or not line.strip():
                    yield line
                continue
            secret = matches_any(name.strip().decode("latin-1"), self._filters.headers)
            new = b" " + _FILTERED if secret else _WORD.sub(lambda found: self.subject(found[0]), value)
            yield name + colon + new + rest[len(value) :]


def _is_on(patterns: Sequence[bytes], subject: bytes) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


def _words(filters: Filters) -> tuple[bytes, ...] | None:
    """Return words of which one, in lower case, is in each frame that a filter is about; None without them.

    They are letters and digits, so that only escapes or another encoding can hide them (`_ODD`).
    """
    names = [max(map(_word, glob.encode().split(b"*")), key=len) for glob in filters.headers]
    for place in filters.json:
        names.append(max((_word(name.encode("utf-8", "replace")) for name in place.pointer or ()), key=len))
        if place.subject != b">":
            names.append(max(map(_word, place.subject.split(b".")), key=len))
    for pattern in (*filters.bodies, *filters.subjects):
        names.append(max(map(_word, pattern.split(b".")), key=len))
    return (*dict.fromkeys(names), _IN_BASE64) if all(names) else None


def _word(text: bytes) -> bytes:
    return text.lower() if _PLAIN.fullmatch(text) and not text.isdigit() else b""


def _remember(known: MutableMapping[bytes, bytes], key: bytes, value: bytes) -> None:
    known[key] = value
    if len(known) > _MOST:  # bounded, since a peer chooses their number: the oldest is dropped
        del known[next(iter(known))]
